"""Creating an index from sources by a command that can be interrupted and repeated.

A file in the folder of the index names the sources until all their items are in the index. The same command continues
such an index; an index that is complete is not touched.
"""

import json
import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from genius.data.locations import absolute
from genius.errors import BadIndex
from genius.index.commits import writing_to
from genius.index.folder import Folder, open_folder
from genius.index.index import Index
from genius.index.session import UNFINISHED, is_index, unfinished_engine, unfinished_sources
from genius.model.genius import Genius


@contextmanager
def creating(
    path: str | os.PathLike[str],
    model: Genius,
    sources: Sequence[str | os.PathLike[str]],
    embeddings: bool,
    store_images: bool,
    engine: str = "local",
) -> Iterator[Index]:
    """Create an index, or open the one that an interrupted call with the same arguments left.

    The index counts as complete when the block ends without an exception.

    Args:
        path: Folder of the index, or its URL.
        model: The model that encodes items and queries.
        sources: Files and folders whose items the block adds.
        embeddings: Whether embeddings are stored.
        store_images: Whether image files are copied.
        engine: What adds the items. Another engine cannot continue its work.

    Raises:
        BadIndex: There is an index that is complete or was made of other sources, with another model or options.
    """
    named = [absolute(source) for source in sources]
    folder = open_folder(path)
    if not is_index(folder):
        index = Index.create(path, model, embeddings, store_images)
    elif folder.has(UNFINISHED) or Index.open(path).version == 1:  # version 1 never had an item
        index = _continued(folder, model, named, embeddings, store_images, engine)
    else:
        command = shlex.join(["genius", "index", "add", str(path), *map(str, sources)])
        raise BadIndex(f"{path} exists already: it is an index. Choose another folder, or add to it: {command}")
    if sources:
        with writing_to(folder):
            folder.write(UNFINISHED, json.dumps({"sources": named, "engine": engine}).encode())
    yield index
    folder.delete(UNFINISHED)


def _continued(
    folder: Folder, model: Genius, named: list[str], embeddings: bool, store_images: bool, engine: str
) -> Index:
    before, begun = unfinished_sources(folder), unfinished_engine(folder)
    if before is not None and before != named:
        raise BadIndex(
            f"{folder} is unfinished: its creation from {', '.join(before)} was interrupted. Repeat that "
            "command to continue, or delete the folder to start over."
        )
    if before is not None and begun != engine:
        raise BadIndex(
            f"{folder} is unfinished: its creation with --engine {begun} was interrupted. Repeat that command to "
            "continue, or delete the folder to start over."
        )
    index = Index.open(folder.path, model)
    if (index.header.embeddings, index.header.store_images) != (embeddings, store_images):
        raise BadIndex(
            f"{folder} is unfinished, and was created with other options. Repeat the command with the same options to "
            "continue, or delete the folder to start over."
        )
    return index
