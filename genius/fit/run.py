"""`genius fit`: from an unlabelled collection and an encoder to a model with codebooks and a decoder.

The folder `OUT/fit` holds the vectors, the codebooks and the checkpoint of the decoder: the same command continues an
interrupted fit. The model itself and its report, `fit.json`, are in OUT.
"""

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
from genius.fit.check import (
    MODES,
    CheckedItems,
    by_modality,
    embedding_variance,
    exact,
    recall,
    sentences,
    suggestions,
    used_codes,
)
from genius.fit.codebooks import Floats, Sample, learn_codebooks, quantization_error
from genius.fit.collection import Collection, encode_collection, normalised
from genius.fit.decoder import choose_query_scale, closed_form
from genius.fit.encoders import EncoderLike, OpenedEncoder, open_encoder
from genius.fit.layers import train_layers
from genius.fit.probes import probe_texts
from genius.fit.queries import PAIR, QueryMaker
from genius.fit.settings import MAX_LEVELS, FitSettings, held_back
from genius.model.encoder_only import encoder_only
from genius.model.fit_report import FitReport
from genius.model.genius import Genius
from genius.model.quantizer_runtime import QuantizerRuntime, code_report
from genius.runtime.wording import counted
from genius.train.features import encoder_digest
from genius.train.files import check_same_run, record_run, write_atomically

WORK = "fit"
ENOUGH_TEXTS = 256  # fewer texts of pairs are joined by probes


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
        collection: Items, or their vectors.
        encoder: See `open_encoder`. None, with vectors: the model accepts vectors only.
        out: Model folder to write. An interrupted fit in it continues. None: the model stays in memory.
        settings: Sizes and seed.
        modality: Modality of the items, if vectors are given as one array.
        device: Device of the encoder, as torch names it.
        console: Where progress is shown. None: nowhere.
        total: Number of items, for the progress bar.

    Returns:
        The model, and the report of the check.

    Raises:
        GeniusError: There are too few items, the encoder cannot be opened, or `out` holds another fit.
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
    if opened is None:
        opened = OpenedEncoder(PrecomputedEncoder(collection.dim), False)
    if opened.encoder.dim != collection.dim:
        raise BadData(
            f"The encoder makes vectors of {opened.encoder.dim} dimensions, but the given ones have {collection.dim}."
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
    """Learn codebooks and decoder from the vectors of a collection, and check the result. See `fit`."""
    console, started = console or Console(quiet=True), time.monotonic()
    settings = settings.for_items(len(collection))
    rng = np.random.default_rng(settings.seed)
    order = rng.permutation(len(collection))
    aside = held_back(len(collection))
    held = collection.sample(np.sort(order[:aside]))
    learned = collection.sample(np.sort(_balanced(order[aside:], collection.modality, settings.sample)))
    if work is not None:
        facts = {"items": len(collection), "encoder": opened.encoder.config(), "settings": asdict(settings)}
        begun = (work / "codebooks.safetensors").exists()
        check_same_run(work / "run.json", facts, work.parent, "a fit of other items or with other settings", begun)
        record_run(work / "run.json", facts)
    with console.status("Learning codebooks"):
        quantizer = _codebooks(learned, held, settings, work)
    texts = _texts(collection, opened)
    scale = choose_query_scale(quantizer, opened.encoder, learned, QueryMaker(held, texts), settings)
    decoder = closed_form(quantizer, scale)
    if settings.layers:
        decoder = train_layers(quantizer, learned, held, texts, scale, settings, work, console)
    fusion = encoder_only(opened.encoder).fusion
    model = Genius(
        opened.encoder, fusion, quantizer, decoder, settings.code_beams, "float32", instructions=opened.instructions
    )
    with console.status("Checking"):
        report = _check(model, collection, order, held, len(learned), QueryMaker(held, texts), scale, settings, started)
    for line in sentences(report):
        console.print(line, highlight=False)
    return model, report


def _balanced(rows: np.ndarray, modality: np.ndarray, most: int) -> np.ndarray:
    """At most `most` of the rows; of each modality in proportion to the square root of its number of items."""
    if len(rows) <= most:
        return rows
    kinds = modality[rows]
    counts = np.bincount(kinds).astype(float)
    left, room = {int(kind): int(count) for kind, count in enumerate(counts) if count}, most
    chosen = []
    for kind in sorted(left, key=lambda one: left[one]):
        weights = sum(count**0.5 for other, count in left.items() if other == kind or count >= left[kind])
        share = min(left[kind], round(room * left[kind] ** 0.5 / weights))
        chosen.append(rows[kinds == kind][:share])
        room -= share
        left[kind] = 0
    return np.concatenate(chosen)


def _codebooks(learned: Sample, held: Sample, settings: FitSettings, work: Path | None) -> QuantizerRuntime:
    """Learn codebooks, or read those of an interrupted fit."""
    path = None if work is None else work / "codebooks.safetensors"
    if path is not None and path.exists():
        books = load_file(path)
        return QuantizerRuntime([books[f"level{i}"] for i in range(len(books))], len(books) - 1)
    assert settings.codes is not None
    quantizer = learn_codebooks(
        learned,
        held,
        settings.codes,
        settings.levels,
        max_levels=MAX_LEVELS,
        target_error=settings.target_error,
        rounds=settings.rounds,
        beams=settings.code_beams,
        seed=settings.seed,
    )
    if path is not None:
        books = {f"level{i}": np.ascontiguousarray(book) for i, book in enumerate(quantizer.own_codebooks)}
        write_atomically(path, lambda part: save_file(books, part))
    return quantizer


def _texts(collection: Collection, opened: OpenedEncoder) -> Floats:
    """Vectors of texts that serve as queries: of the pairs, and of probes where these are few; (m, d) normalised."""
    own = normalised(collection.texts[:ENOUGH_TEXTS]) if len(collection.texts) else None
    if own is not None and len(own) >= ENOUGH_TEXTS:
        return own
    probes = _probes(collection, opened)
    found = [part for part in (own, probes) if part is not None]
    return np.concatenate(found) if found else np.zeros((0, collection.dim), np.float32)


def _probes(collection: Collection, opened: OpenedEncoder) -> Floats | None:
    """Vectors of the probes, if the collection has images and the encoder reads texts."""
    if not (collection.modality != Modality.TEXT).any():
        return None
    target = Modality.IMAGE if (collection.modality == Modality.IMAGE).any() else Modality.IMAGE_TEXT
    model = encoder_only(opened.encoder)
    model.instructions = opened.instructions
    try:
        vectors = model.encode_queries([Query(text=text, target=target) for text in probe_texts()])
    except GeniusError:  # it takes vectors or images only
        return None
    there = vectors.has_text & np.isfinite(vectors.text).all(1)
    return normalised(vectors.text[there]) if there.any() else None


def _check(
    model: Genius,
    collection: Collection,
    order: np.ndarray,
    held: Sample,
    learned: int,
    maker: QueryMaker,
    scale: float,
    settings: FitSettings,
    started: float,
) -> FitReport:
    """Search a part of the collection, held-back items included, with queries made from these."""
    sample = collection.sample(np.sort(order[: settings.check_items]))
    items = CheckedItems(sample, model.quantizer.encode(sample.z, sample.modality, model.code_beams))
    queries = maker.draw(settings.check_queries, np.random.default_rng([settings.seed, PAIR]))
    nearest = exact(sample, queries)
    recalls = {mode: recall(model, items, queries, nearest, mode) for mode in MODES}
    codes = code_report(items.codes, model.sizes)
    error = quantization_error(model.quantizer, held, model.code_beams)
    variance = embedding_variance(held.z, held.modality, model.quantizer.codebooks[0])
    layers, levels = model.decoder.config.layers, model.quantizer.levels
    return FitReport(
        items=len(collection),
        modalities={
            one.label: count for one, count in zip(Modality, by_modality(collection.modality), strict=True) if count
        },
        learned_from=learned,
        sizes=model.sizes,
        layers=layers,
        query_scale=scale,
        error=error,
        variance=variance,
        codes_used=used_codes(codes),
        shared_ids=codes.collisions / codes.items,
        checked_items=len(sample),
        queries=len(queries),
        recall=recalls,
        suggestions=suggestions(recalls, codes, levels, error / variance if variance else 0.0, layers),
        seconds=round(time.monotonic() - started, 1),
    )


def fitted_words(report: FitReport, out: object) -> str:
    """One sentence for the end of a command."""
    return f"Fitted {out} to {counted(report.items, 'item')} in {report.seconds:.0f} s."
