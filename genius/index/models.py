"""Models that an index keeps inside its folder, `models/FINGERPRINT`: those that were fitted to it.

The header names such a model by its path inside the folder, so that an index can be moved together with its model.
"""

import os
import shutil
from pathlib import Path

import lance

from genius.index.checksums import sync
from genius.index.storage import Header
from genius.model.fit_report import FitReport
from genius.model.genius import Genius

MODELS = "models"


def keep_model(folder: Path, model: Genius, report: FitReport | None = None) -> Genius:
    """Save a model inside the folder of an index, complete or not at all; returns it as loaded from there."""
    home = folder / MODELS / model.fingerprint
    if not home.is_dir():
        part = home.with_name(f"{home.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        model.save_pretrained(part)
        if report is not None:
            report.write(part)
        for path in (*part.iterdir(), part):
            sync(path)
        os.replace(part, home)
        sync(home.parent)
    model.source = str(home)
    return model


def source_of(model: Genius, folder: Path | None = None) -> str | None:
    """What loads the model, also in another working directory: a name, or the absolute path of a folder.

    A model inside `folder`, an index, is named by its path in there.
    """
    if not model.source or not os.path.isdir(model.source):
        return model.source
    path = Path(os.path.abspath(model.source))
    inside = folder is not None and path.parent == Path(os.path.abspath(folder)) / MODELS
    return f"{MODELS}/{path.name}" if inside else str(path)


def model_path(folder: Path, source: str) -> str:
    """The argument of `Genius.from_pretrained` for what a header names."""
    inside = folder / source
    return str(inside) if source.startswith(f"{MODELS}/") else source


def remove_unused_models(dataset: lance.LanceDataset) -> None:
    """Remove the models inside an index that none of its versions names."""
    folder = Path(dataset.uri).parent / MODELS
    if not folder.is_dir():
        return
    named = {Header.of(dataset.checkout_version(one["version"])).model for one in dataset.versions()}
    for home in folder.iterdir():
        if f"{MODELS}/{home.name}" not in named:
            shutil.rmtree(home, ignore_errors=True)
