"""GENIUS: generative multimodal search. The public names, each loaded when first used."""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

# Before its import: ONNX Runtime from 1.29 on reports usage to its maker and keeps a device id in the cache folder.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

__version__ = "0.1.0"
__all__ = [
    "AddReport",
    "BadData",
    "BadImage",
    "BadIndex",
    "BadItem",
    "BadModel",
    "Branch",
    "CodeChild",
    "CodePage",
    "CodedItem",
    "CompactReport",
    "Decoder",
    "DecoderRuntime",
    "Encoder",
    "ExportReport",
    "Fusion",
    "FusionRuntime",
    "Genius",
    "GeniusError",
    "Header",
    "Hit",
    "HitLists",
    "Hits",
    "Index",
    "IndexInfo",
    "IndexProblem",
    "Item",
    "MissingExtra",
    "Modality",
    "Prepared",
    "Quantizer",
    "QuantizerRuntime",
    "Query",
    "RestoreReport",
    "SearchKeywords",
    "SearchOptions",
    "SearchResult",
    "Searcher",
    "TopK",
    "Vectors",
    "Version",
    "__version__",
]

if TYPE_CHECKING:
    from genius.data.items import Item, Modality, Query
    from genius.encoders.base import Encoder, Prepared, Vectors
    from genius.errors import BadData, BadImage, BadIndex, BadItem, BadModel, GeniusError, MissingExtra
    from genius.index.commits import CompactReport
    from genius.index.export import ExportReport
    from genius.index.index import Index
    from genius.index.info import IndexInfo
    from genius.index.restore import RestoreReport
    from genius.index.session import Version
    from genius.index.storage import Header
    from genius.index.verify import IndexProblem
    from genius.model.decoder_runtime import DecoderRuntime
    from genius.model.fusion_runtime import FusionRuntime
    from genius.model.genius import Genius
    from genius.model.quantizer_runtime import QuantizerRuntime
    from genius.networks.decoder import Decoder
    from genius.networks.fusion import Fusion
    from genius.networks.quantizer import Quantizer
    from genius.search.options import SearchKeywords, SearchOptions
    from genius.search.results import (
        AddReport,
        Branch,
        CodeChild,
        CodedItem,
        CodePage,
        Hit,
        HitLists,
        Hits,
        SearchResult,
        TopK,
    )
    from genius.search.searcher import Searcher

_MODULES = {
    "genius.data.items": ["Item", "Modality", "Query"],
    "genius.encoders.base": ["Encoder", "Prepared", "Vectors"],
    "genius.errors": ["BadData", "BadImage", "BadIndex", "BadItem", "BadModel", "GeniusError", "MissingExtra"],
    "genius.index.commits": ["CompactReport"],
    "genius.index.export": ["ExportReport"],
    "genius.index.index": ["Index"],
    "genius.index.info": ["IndexInfo"],
    "genius.index.restore": ["RestoreReport"],
    "genius.index.session": ["Version"],
    "genius.index.storage": ["Header"],
    "genius.index.verify": ["IndexProblem"],
    "genius.model.decoder_runtime": ["DecoderRuntime"],
    "genius.model.fusion_runtime": ["FusionRuntime"],
    "genius.model.genius": ["Genius"],
    "genius.model.quantizer_runtime": ["QuantizerRuntime"],
    "genius.networks.decoder": ["Decoder"],
    "genius.networks.fusion": ["Fusion"],
    "genius.networks.quantizer": ["Quantizer"],
    "genius.search.options": ["SearchKeywords", "SearchOptions"],
    "genius.search.results": [
        *(
            "AddReport",
            "Branch",
            "CodeChild",
            "CodePage",
            "CodedItem",
            "Hit",
            "HitLists",
            "Hits",
            "SearchResult",
            "TopK",
        ),
    ],
    "genius.search.searcher": ["Searcher"],
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'genius' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
