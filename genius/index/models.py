"""Models that an index keeps inside its folder, `models/FINGERPRINT`: those that were fitted to it.

The header names such a model by its path inside the folder, so that an index can be moved together with its model.
"""

import os
import tempfile
from pathlib import Path

import lance

from genius.data.locations import file_name, parent
from genius.index.folder import Folder
from genius.index.storage import Header
from genius.model.fit_report import FitReport
from genius.model.genius import Genius

MODELS = "models"


def keep_model(folder: Folder, model: Genius, report: FitReport | None = None) -> Genius:
    """Save a model inside the folder of an index. Until a header names it, it is not part of the index."""
    home = f"{MODELS}/{model.fingerprint}"
    with tempfile.TemporaryDirectory(prefix="genius-") as temporary:
        model.save_pretrained(temporary)
        if report is not None:
            report.write(Path(temporary))
        folder.keep(Path(temporary), home)
    model.source = folder.uri(home)
    return model


def source_of(model: Genius, folder: Folder | None = None) -> str | None:
    """What loads the model, also in another working directory: a name, or the absolute path of a folder.

    A model inside `folder`, an index, is named by its path in there.
    """
    if not model.source:
        return model.source
    path = os.path.abspath(model.source) if os.path.isdir(model.source) else model.source
    if folder is not None and parent(path) in (folder.uri(MODELS), os.path.abspath(folder.uri(MODELS))):
        return f"{MODELS}/{file_name(path)}"
    return path


def model_path(folder: Folder, source: str) -> str:
    """The argument of `Genius.from_pretrained` for what a header names. Models of an object store are downloaded."""
    return folder.local_copy(source) if source.startswith(f"{MODELS}/") else source


def model_folder(folder: Folder, source: str | None) -> Path | None:
    """The folder of the model that a header names; None for a bundled model, one of the hub, or one not saved."""
    path = model_path(folder, source) if source else ""
    return Path(path) if source and (os.path.isabs(source) or path != source) else None


def remove_unused_models(folder: Folder, dataset: lance.LanceDataset) -> None:
    """Remove the models inside an index that none of its versions names."""
    homes = [f"{MODELS}/{name}" for name in folder.names(MODELS)]
    if not homes:
        return
    named = {Header.of(dataset.checkout_version(one["version"])).model for one in dataset.versions()}
    for home in homes:
        if home not in named:
            folder.delete_folder(home)
