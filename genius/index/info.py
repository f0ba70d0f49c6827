"""IndexInfo: what an index holds."""

from collections import Counter
from dataclasses import asdict, dataclass

from genius.data.items import Modality
from genius.index.checksums import all_checksums
from genius.index.drift import Drift, index_drift
from genius.index.folder import Folder
from genius.index.session import unfinished_sources
from genius.index.snapshot import Snapshot
from genius.index.storage import metadata_fields
from genius.search.trie import Trie


@dataclass(frozen=True)
class IndexInfo:
    """What an index holds.

    Attributes:
        path: The folder.
        items: Number of items.
        modalities: Number of items of each modality.
        ids: Number of distinct IDs (code sequences). Similar items can share one.
        fields: Metadata fields that filters can name, and their types: "text", "number" or "boolean".
        model: What the model is loaded from; None if it was never saved.
        fingerprint: Fingerprint of the model.
        sizes: Number of codes of each level.
        dim: Dimensions of the embeddings.
        embeddings: Whether the index holds embeddings.
        store_images: Whether the index keeps copies of image files.
        generation: How many times all items have been re-encoded.
        version: The version that is read.
        bytes: Size on disk. In an object store, the size of the files that have checksums.
        drift: How well the codes of a fitted model fit the items added since; None if there is nothing to tell.
        unfinished: Sources of a `genius index create` that has not been completed; empty if it has.
    """

    path: str
    items: int
    modalities: dict[str, int]
    ids: int
    fields: dict[str, str]
    model: str | None
    fingerprint: str
    sizes: tuple[int, ...]
    dim: int
    embeddings: bool
    store_images: bool
    generation: int
    version: int
    bytes: int
    drift: Drift | None
    unfinished: tuple[str, ...]


def index_info(snapshot: Snapshot) -> IndexInfo:
    """Collect what an index holds, without loading its encoder and decoder."""
    folder, codes = snapshot.folder, snapshot.codes()
    with snapshot.reading():
        counts = Counter(snapshot.dataset.to_table(columns=["modality"])["modality"].to_pylist())
    header = asdict(snapshot.header)
    del header["format"], header["restored"]
    return IndexInfo(
        path=str(folder),
        items=len(codes),
        modalities={modality.label: counts[modality.label] for modality in Modality},
        ids=int((Trie(codes).first_diff_level < codes.shape[1]).sum()),
        fields=metadata_fields(snapshot.dataset, snapshot.header),
        version=snapshot.version,
        bytes=_size(folder),
        drift=index_drift(snapshot),
        unfinished=tuple(unfinished_sources(folder) or ()),
        **header,
    )


def _size(folder: Folder) -> int:
    size = folder.size()
    return sum(checksum.size for checksum in all_checksums(folder).values()) if size is None else size
