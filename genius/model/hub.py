"""Models on the Hugging Face hub: fetched by their id, published with a model card that states what was measured.

A model folder (see `genius`) is what the hub keeps: `config.json`, `model.safetensors`, `README.md`. Knows the
hub's ways; knows nothing of what a card says (`genius.evaluation.model_card`) or of what the parts of a model compute.
"""

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from genius import __version__
from genius.encoders.model_files import HUB_ID, local_folder, needs_extra, reason
from genius.errors import BadData, GeniusError

if TYPE_CHECKING:
    from genius.model.genius import Genius

MODEL_FILES = ("config.json", "model.safetensors")
CARD = "README.md"


def fetch(name: str) -> Path:
    """The folder of the model `owner/name` of the hub, downloaded unless it is here already."""
    return local_folder(name, MODEL_FILES)


def hub_library() -> Any:
    """The package huggingface_hub."""
    try:
        import huggingface_hub
    except ImportError as error:
        raise needs_extra("Models of the hub need", "huggingface_hub") from error
    return huggingface_hub


def _trouble() -> tuple[type[Exception], ...]:
    """What the hub's library raises when a name is wrong, something is not there, or there is no network."""
    from huggingface_hub import errors

    return (OSError, ValueError, errors.HfHubHTTPError, getattr(errors, "HTTPError", OSError))


def push(
    model: "Genius",
    name: str,
    run: str | os.PathLike[str] | None = None,
    card: str | os.PathLike[str] | None = None,
    license: str | None = None,
    private: bool = False,
) -> str:
    """Publishes a model as `owner/name`; returns its address. The token is the one that `hf auth login` keeps.

    run: a folder of `genius evaluate --out` with this model's figures, for the card.
    card: a README.md of your own, instead of the one that is made.
    """
    from genius.evaluation.model_card import model_card

    hub = hub_library()
    if HUB_ID.fullmatch(name) is None:
        raise GeniusError(f"{name!r} is not the name of a model on the hub. Give it as owner/name.")
    text = model_card(model, name, run, license) if card is None else _read_card(Path(card))
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        Path(folder, CARD).write_text(text, encoding="utf-8")
        api = hub.HfApi(library_name="genius-search", library_version=__version__)
        try:
            address = api.create_repo(name, private=private, exist_ok=True)
            api.upload_folder(
                repo_id=name,
                folder_path=folder,
                commit_message=f"Model {model.fingerprint}, genius-search {__version__}",
            )
        except _trouble() as error:
            raise GeniusError(
                f"The model could not be published as {name!r} ({reason(error)}). Check that `hf auth whoami` "
                "knows you, that you may write there, and that there is a network."
            ) from error
    return str(address)


def _read_card(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise BadData(f"{file} cannot be read as a model card ({error}). Give a text file in UTF-8.") from error
