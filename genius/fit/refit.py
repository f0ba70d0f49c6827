"""Fits models to the items of an index, from their stored embeddings, and creates indexes with a fitted model."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta

import numpy as np
from rich.console import Console

from genius.errors import BadIndex
from genius.fit.collection import Collection
from genius.fit.encoders import OpenedEncoder
from genius.fit.run import fit_vectors
from genius.fit.settings import FitSettings
from genius.index.creation import creating
from genius.index.folder import Folder, open_folder
from genius.index.index import Index
from genius.index.models import keep_model
from genius.index.session import check_free, is_index
from genius.model.encoder_only import encoder_only
from genius.model.fit_report import FitReport
from genius.model.genius import Genius
from genius.search.results import AddReport


def refit(
    index: Index, settings: FitSettings | None = None, *, embeddings: bool = True, console: Console | None = None
) -> FitReport:
    """Learn new codebooks and a new decoder from the present items, and give all items new codes, as one new version.

    Nothing is encoded: codes are made from the stored embeddings. The new model is stored inside the folder of the
    index. Items that others add meanwhile get new codes, too. If the process is killed, the index keeps its old codes.

    Args:
        index: The index.
        settings: Sizes and seed of the fit.
        embeddings: Whether the index keeps its embeddings.
        console: Where progress is shown. None: nowhere.

    Returns:
        The report of the fit.

    Raises:
        BadIndex: The index stores no embeddings, or some of them are zero.
        GeniusError: There are too few items.
    """
    vectors, modality = index.embeddings()
    opened = OpenedEncoder(index.model.encoder, index.model.instructions)
    if not vectors.any(1).all():
        raise BadIndex(f"{index.path} has embeddings that are zero. `genius index verify {index.path}` lists them.")
    texts = np.zeros((0, vectors.shape[1]), np.float32)
    collection = Collection(vectors, modality, texts, [])
    model, report = fit_vectors(collection, opened, settings or FitSettings(), console=console)
    report = replace(report, in_index=True)
    index.recode(keep_model(index._folder, model, report), embeddings, progress=console is not None)
    return report


def create_fitted(
    path: str | os.PathLike[str],
    opened: OpenedEncoder,
    sources: Sequence[str | os.PathLike[str]],
    add: Callable[[Index], AddReport],
    settings: FitSettings | None = None,
    *,
    embeddings: bool = True,
    store_images: bool = False,
    console: Console | None = None,
) -> tuple[Index, AddReport, FitReport | None]:
    """Create an index, add items, and fit codebooks and decoder to them. Each item is encoded once.

    While items are added, the index has a model without codebooks: an interrupted creation can be searched, exactly,
    and the same call continues it.

    Args:
        path: Folder of the index, or its URL.
        opened: The encoder.
        sources: Names of the sources, by which an interrupted creation is recognised.
        add: Adds the items of the sources to an index.
        settings: Sizes and seed of the fit.
        embeddings: Whether the index keeps its embeddings.
        store_images: Whether image files are copied.
        console: Where progress is shown. None: nowhere.

    Returns:
        The index, the report of adding, and the report of the fit; None if an earlier call had fitted already.

    Raises:
        BadIndex: There is another index or other files in the folder.
        GeniusError: There are too few items.
    """
    model = encoder_only(opened.encoder)
    model.instructions = opened.instructions
    folder = open_folder(path)
    fitted = _unfinished_model(folder)
    if fitted is None:
        if not is_index(folder):
            check_free(folder)
        model = keep_model(folder, model)
    with creating(path, fitted or model, sources, embeddings if fitted else True, store_images) as index:
        added = add(index)
        report = None if fitted else refit(index, settings, embeddings=embeddings, console=console)
    index.compact(keep=timedelta(0))  # versions before the fit have no codes
    return index, added, report


def _unfinished_model(folder: Folder) -> Genius | None:
    """The model of an index whose creation was interrupted after the fit."""
    if not folder.exists():
        return None
    try:
        index = Index.open(folder.path)
    except BadIndex:
        return None
    return index.model if len(index.header.sizes) > 1 else None
