"""The networks as torch modules, for training, conversion and export; tests compare the runtime with them."""

from genius.errors import MissingExtra

try:
    import torch  # noqa: F401
except ImportError as error:
    raise MissingExtra("Training, converting or exporting a model", "train") from error
