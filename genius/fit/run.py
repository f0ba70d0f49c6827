"""`genius fit`: from an unlabelled collection and an encoder to a model with codebooks and a decoder.

The folder `OUT/fit` holds the vectors, the codebooks and the checkpoint of the decoder: the same command continues an
interrupted fit. The model itself and its report, `fit.json`, are in OUT.
"""

import logging
import os
import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import numpy as np
from rich.console import Console
from safetensors.numpy import load_file, save_file

from genius.data.items import Item, Modality, Query
from genius.encoders.base import Vectors
from genius.encoders.precomputed import PrecomputedEncoder
from genius.errors import BadData, BadItem, GeniusError
from genius.fit.check import check_model, sentences
from genius.fit.codebooks import Floats, Sample, learn_codebooks
from genius.fit.collection import Collection, encode_collection, normalised
from genius.fit.decoder import choose_query_scale, closed_form
from genius.fit.encoders import EncoderLike, OpenedEncoder, open_encoder
from genius.fit.layers import LayersStage, train_layers
from genius.fit.probes import probe_texts
from genius.fit.queries import QueryMaker
from genius.fit.settings import FitSettings, held_back
from genius.fit.validation import Validation
from genius.model.encoder_only import encoder_only
from genius.model.fit_report import FitReport
from genius.model.genius import Genius
from genius.model.quantizer_runtime import QuantizerRuntime
from genius.runtime.wording import counted
from genius.train.features import encoder_digest
from genius.train.files import check_same_run, record_run, write_atomically

WORK = "fit"  # folder in OUT
CODEBOOKS = "codebooks.safetensors"
ENOUGH_TEXTS = 256  # with fewer texts of pairs, probes are added
SHOWN_BAD = 5  # items that a warning names

log = logging.getLogger(__name__)


def fit(
    collection: Collection | Vectors | np.ndarray | Iterable[Item | BadItem],
    encoder: EncoderLike | None = None,
    out: str | os.PathLike[str] | None = None,
    settings: FitSettings | None = None,
    *,
    modality: Modality = Modality.TEXT,
    device: str = "cpu",
    console: Console | None = None,
    total: int | None = None,
) -> tuple[Genius, FitReport]:
    """Fit a model to a collection.

    Args:
        collection: Items, or their vectors (n, d).
        encoder: See `open_encoder`. None: vectors are given, and the model accepts vectors only.
        out: Model folder to write. An interrupted fit in it continues. None: the model stays in memory.
        settings: Sizes and seed.
        modality: Modality of all items, if vectors are given as one array.
        device: Device of the encoder, as torch names it.
        console: Where progress is shown. None: nowhere.
        total: Number of items, for the progress bar.

    Returns:
        The model and the report of its check.

    Raises:
        GeniusError: There are too few items, the encoder cannot be opened or does not fit the vectors, or `out` holds
            another fit.
    """
    folder = None if out is None else Path(out)
    work = None if folder is None else folder / WORK
    settings = settings or FitSettings()
    opened = None if encoder is None else open_encoder(encoder, device)
    if isinstance(collection, Vectors | np.ndarray):
        collection = Collection.of(collection, modality)
    if not isinstance(collection, Collection):
        if opened is None:
            raise GeniusError('Items need an encoder. Name one, such as encoder="mini".')
        vectors = None if work is None else work / f"vectors-{encoder_digest(opened.encoder)}"
        collection = encode_collection(collection, opened.encoder, vectors, console is not None, total)
        if collection.bad:
            reasons = "; ".join(map(str, collection.bad[:SHOWN_BAD]))
            more = "; ..." * (len(collection.bad) > SHOWN_BAD)
            log.warning("%s left out: %s%s", counted(len(collection.bad), "bad item"), reasons, more)
    if opened is None:
        opened = OpenedEncoder(PrecomputedEncoder(collection.dim), False)
    if opened.encoder.dim != collection.dim:
        raise BadData(
            f"The encoder makes vectors of {opened.encoder.dim} dimensions, but the given ones have {collection.dim}. "
            "Give the encoder that made them, or none."
        )
    model, report = fit_vectors(collection, opened, settings, work, console)
    if folder is not None:
        model.save_pretrained(folder)
        report.write(folder)
        model.source = str(folder)
    return model, report


def fit_vectors(
    collection: Collection,
    opened: OpenedEncoder,
    settings: FitSettings,
    work: Path | None = None,
    console: Console | None = None,
) -> tuple[Genius, FitReport]:
    """Learn codebooks and a decoder from the vectors of a collection, and check the result.

    Args:
        collection: The vectors.
        opened: The encoder that made them.
        settings: Sizes and seed.
        work: Folder of codebooks and checkpoints, from which an interrupted fit continues. None: it cannot continue.
        console: Where progress is shown. None: nowhere.

    Returns:
        The model and the report of its check.

    Raises:
        GeniusError: There are too few items, or `work` holds another fit.
    """
    console, started = console or Console(quiet=True), time.monotonic()
    settings = settings.for_items(len(collection))
    order = np.random.default_rng(settings.seed).permutation(len(collection))
    held_count = held_back(len(collection))
    held = collection.sample(np.sort(order[:held_count]))
    learned = collection.sample(np.sort(_balanced(order[held_count:], collection.modality, settings.sample)))
    if work is not None:
        facts = {"items": len(collection), "encoder": opened.encoder.config(), "settings": asdict(settings)}
        begun = (work / CODEBOOKS).exists()
        check_same_run(work / "run.json", facts, work.parent, "a fit of other items or with other settings", begun)
        record_run(work / "run.json", facts)
    with console.status("Learning codebooks"):
        quantizer = _codebooks(learned, held, settings, work)
    texts = _texts(collection, opened)
    maker = QueryMaker(held, texts)

    def validation(stream: int) -> Validation:  # stream: of random numbers
        rng = np.random.default_rng([settings.seed, stream])
        return Validation(quantizer, learned, maker, settings.code_beams, rng)

    scale = choose_query_scale(quantizer, validation(1))
    if settings.layers:
        stage = LayersStage(quantizer, learned, texts, validation(2), scale, settings)
        decoder = train_layers(stage, work, console)
    else:
        decoder = closed_form(quantizer, scale)
    fusion = encoder_only(opened.encoder).fusion
    model = Genius(
        opened.encoder, fusion, quantizer, decoder, settings.code_beams, "float32", instructions=opened.instructions
    )
    with console.status("Checking"):
        checked = collection.sample(np.sort(order[: settings.check_items]))  # held-back items included
        queries = maker.draw(settings.check_queries, np.random.default_rng([settings.seed, 3]))
        report = check_model(model, collection, checked, held, queries, len(learned), started)
    for line in sentences(report):
        console.print(line, highlight=False)
    return model, report


def _balanced(rows: np.ndarray, modality: np.ndarray, most: int) -> np.ndarray:
    """At most `most` of the rows; of each modality in proportion to the square root of its number of items.

    A modality with fewer items than its share leaves the rest to larger ones, so the smallest comes first.
    """
    if len(rows) <= most:
        return rows
    modalities = modality[rows]
    counts = {int(one): int(count) for one, count in zip(*np.unique(modalities, return_counts=True), strict=True)}
    room, chosen = most, []
    for one in sorted(counts, key=lambda key: counts[key]):
        share = min(counts[one], round(room * counts[one] ** 0.5 / sum(count**0.5 for count in counts.values())))
        chosen.append(rows[modalities == one][:share])
        room -= share
        del counts[one]
    return np.concatenate(chosen)


def _codebooks(learned: Sample, held: Sample, settings: FitSettings, work: Path | None) -> QuantizerRuntime:
    """Learn codebooks, or read the file that an interrupted fit wrote."""
    path = None if work is None else work / CODEBOOKS
    if path is not None and path.exists():
        books = load_file(path)
        return QuantizerRuntime([books[f"level{i}"] for i in range(len(books))], len(books) - 1)
    quantizer = learn_codebooks(learned, held, settings)
    if path is not None:
        books = {f"level{i}": np.ascontiguousarray(book) for i, book in enumerate(quantizer.own_codebooks)}
        write_atomically(path, lambda part: save_file(books, part))
    return quantizer


def _texts(collection: Collection, opened: OpenedEncoder) -> Floats:
    """(m, d) normalised vectors of texts that serve as queries: texts of pairs and, if there are few, probes."""
    own = normalised(collection.texts[:ENOUGH_TEXTS]) if len(collection.texts) else None
    if own is not None and len(own) >= ENOUGH_TEXTS:
        return own
    probes = _probes(collection, opened)
    found = [part for part in (own, probes) if part is not None]
    return np.concatenate(found) if found else np.zeros((0, collection.dim), np.float32)


def _probes(collection: Collection, opened: OpenedEncoder) -> Floats | None:
    """(m, d) normalised vectors of the probes. None if the collection has no images or the encoder reads no texts."""
    if not (collection.modality != Modality.TEXT).any():
        return None
    target = Modality.IMAGE if (collection.modality == Modality.IMAGE).any() else Modality.IMAGE_TEXT
    model = encoder_only(opened.encoder)
    model.instructions = opened.instructions
    try:
        vectors = model.encode_queries([Query(text=text, target=target) for text in probe_texts()])
    except GeniusError:  # the encoder takes vectors or images only
        return None
    there = vectors.has_text & np.isfinite(vectors.text).all(1)
    return normalised(vectors.text[there]) if there.any() else None
