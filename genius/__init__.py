"""GENIUS: generative multimodal search. The public names, nothing else; each is loaded when first used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Genius", "GeniusError", "Hit", "Index", "Item", "Modality", "Query", "__version__"]

if TYPE_CHECKING:
    from genius.data.items import Item, Modality, Query
    from genius.errors import GeniusError
    from genius.index.index import Hit, Index
    from genius.model.genius import Genius

_HOMES = {
    "Genius": "genius.model.genius",
    "GeniusError": "genius.errors",
    "Hit": "genius.index.index",
    "Index": "genius.index.index",
    "Item": "genius.data.items",
    "Modality": "genius.data.items",
    "Query": "genius.data.items",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'genius' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
