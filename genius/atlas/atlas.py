"""Atlas: the described code tree of a collection, and its JSON."""

from dataclasses import asdict, dataclass
from typing import Any

from genius.atlas.collection import Collection
from genius.atlas.measures import Measure, measures_json
from genius.atlas.names import Name
from genius.atlas.tree import MAX_NODES, CodeTree, Node, code_tree
from genius.atlas.words import Words, words_of
from genius.data.items import Modality
from genius.model.quantizer_runtime import code_report

FORMAT = 1
SNIPPET = 120  # characters of a text that are shown


@dataclass(frozen=True)
class Atlas:
    """The described code tree of a collection."""

    collection: Collection
    words: Words
    tree: CodeTree

    @classmethod
    def of(cls, collection: Collection, max_nodes: int = MAX_NODES) -> "Atlas":
        """Name and describe the codes of a collection. At most `max_nodes` prefixes: those with most items."""
        words = words_of(collection)
        return cls(collection, words, code_tree(collection, words, max_nodes))

    @property
    def shown(self) -> list[int]:
        """Rows of all examples, those of the upper levels first."""
        nodes = sorted([*self.tree.nodes, *self.tree.codes], key=lambda node: (len(node.codes), -node.items))
        return list(dict.fromkeys(row for node in nodes for row in node.examples))

    def to_json(self, measures: dict[str, Measure] | None = None) -> dict[str, Any]:
        """The content of atlas.json. docs/atlas.md describes the fields."""
        collection, rows = self.collection, self.shown
        place = {row: number for number, row in enumerate(rows)}
        report = asdict(code_report(collection.codes, collection.model.sizes))
        return {
            "format": FORMAT,
            "index": collection.name,
            "version": collection.version,
            "model": collection.model.source,
            "fingerprint": collection.model.fingerprint,
            "items": len(collection),
            "modalities": {one.label: int((collection.modality == one).sum()) for one in Modality},
            "sizes": list(collection.model.sizes),
            "codes_in_use": report,
            "measures": measures_json(measures or {}),
            "nodes": [_node_json(node, place) for node in self.tree.nodes],
            "codes": [_node_json(node, place) for node in self.tree.codes],
            "examples": [
                {
                    "id": collection.ids[row],
                    "modality": int(collection.modality[row]),
                    "text": _snippet(collection.texts[row]),
                }
                for row in rows
            ],
        }


def name_json(name: Name) -> list[list[Any]]:
    """The words of a name, each with its share of the code's items and of its siblings' items."""
    return [[word.word, round(word.here, 3), round(word.elsewhere, 4)] for word in name.words]


def _node_json(node: Node, place: dict[int, int]) -> dict[str, Any]:
    return {
        "codes": [None if code < 0 else code for code in node.codes],
        "items": node.items,
        "name": name_json(node.name),
        "modalities": list(node.modalities),
        "examples": [place[row] for row in node.examples],
        **({"children": node.children} if node.codes[0] >= 0 else {"parents": node.parents}),
    }


def _snippet(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= SNIPPET else text[: SNIPPET - 1].rstrip() + "…"
