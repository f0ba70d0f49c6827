"""Model folders on the Hugging Face hub: download by name, upload with a model card."""

import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from genius.encoders.model_files import HUB_ID, hub_library, local_folder, reason
from genius.errors import GeniusError

MODEL_FILES = ("config.json", "model.safetensors")
CARD = "README.md"
TAGS = ["genius-search", "generative-retrieval", "multimodal-retrieval", "semantic-ids"]
PLAIN_CARD = f"""---
library_name: genius-search
tags: [{", ".join(TAGS)}]
---

# {{name}}

A generative multimodal search model. Install `genius-search` with pip and load it:

```python
from genius import Genius

model = Genius.from_pretrained("{{name}}")
```

Fingerprint `{{fingerprint}}`.
"""


def fetch(name: str) -> Path:
    """The folder of the hub's model `owner/name`, downloaded if it is not in the cache."""
    return local_folder(name, MODEL_FILES)


def check_name(name: str) -> None:
    """Raise GeniusError if a name is not `owner/name`."""
    if HUB_ID.fullmatch(name) is None:
        raise GeniusError(f"{name!r} is not the name of a model on the hub. Give it as owner/name.")


def upload(folder: str | os.PathLike[str], name: str, message: str, private: bool) -> str:
    """Upload a model folder as `owner/name`, with the token that `hf auth login` keeps; returns the page's address."""
    from huggingface_hub import errors

    try:
        ours = version("genius-search")
    except PackageNotFoundError:  # running from a source folder
        ours = None
    api = hub_library().HfApi(library_name="genius-search", library_version=ours)
    try:
        address = api.create_repo(name, private=private, exist_ok=True)
        api.upload_folder(repo_id=name, folder_path=folder, commit_message=message)
    except (OSError, ValueError, errors.HfHubHTTPError, getattr(errors, "HTTPError", OSError)) as error:
        raise GeniusError(
            f"The model could not be published as {name!r} ({reason(error)}). Check that `hf auth whoami` knows you, "
            "that you may write there, and that there is a network."
        ) from error
    return str(address)
