"""JSON of the HTTP service: bodies of requests, and responses as Python objects."""

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any
from urllib.parse import quote

from genius.data.items import ImageSource, Item, Modality, Query
from genius.errors import BadImage, BadItem, GeniusError
from genius.search.options import SearchKeywords, search_options
from genius.search.results import Branch, CodeChild, CodedItem, CodePage, Hit, Hits, SearchResult

MAX_BYTES = 12_000_000
"""Maximum size of images and texts in one request. A single larger item is sent alone."""
FetchImage = Callable[[str], bytes | None]
"""Fetches the image of the item with an id."""


class RemoteItem(Item):
    """An item of a service that has an image. Reading `image` fetches it, once, as the bytes of an image file.

    `repr` and comparisons do not fetch. A copy or a pickle is a plain `Item` with the image, if it was fetched before.
    """

    def __init__(self, id: str, text: str | None, metadata: dict[str, Any], fetch: FetchImage) -> None:
        super().__init__(id, text, None, metadata)
        del self.__dict__["image"]  # so that reading it calls the property
        self.__dict__["_fetch"] = fetch

    @cached_property
    def image(self) -> bytes | None:
        """The image as the service shows it; None if it is gone."""
        fetched: bytes | None = self.__dict__["_fetch"](self.id)
        return fetched

    @property
    def modality(self) -> Modality:
        """Modality of the content, known without the image."""
        return Item(self.id, self.text, b"not fetched").modality

    def plain(self, image: ImageSource | None) -> Item:
        """The same item with another image, or without one."""
        return Item(self.id, self.text, image, self.metadata)

    def __repr__(self) -> str:
        image = "fetched when it is read" if "image" not in self.__dict__ else "fetched"
        return f"RemoteItem(id={self.id!r}, text={self.text!r}, image=<{image}>, metadata={self.metadata!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RemoteItem):
            return NotImplemented
        return (self.id, self.text, self.metadata) == (other.id, other.text, other.metadata)

    def __hash__(self) -> int:
        return hash((self.id, self.text))

    def __reduce__(self) -> tuple[type[Item], tuple[Any, ...]]:
        return Item, (self.id, self.text, self.__dict__.get("image"), self.metadata)


@dataclass(frozen=True)
class JobStatus:
    """State of a background job that writes items.

    Attributes:
        state: "waiting", "running", "done", "failed" or "cancelled".
        bad: The first refused items. `bad_count` counts all of them.
        created: Time in ISO format, as `started` and `finished`.
    """

    id: str
    index: str
    state: str
    items: int
    done: int
    added: int
    replaced: int
    unchanged: int
    bad: list[BadItem]
    bad_count: int
    created: str
    started: str | None
    finished: str | None
    error: str | None

    @property
    def over(self) -> bool:
        """Whether the job has ended."""
        return self.state not in ("waiting", "running")


@dataclass(frozen=True)
class ServedIndex:
    """Description of a served index, see `IndexInfo`. `writable` is False if the service accepts no writes."""

    name: str
    items: int
    modalities: dict[str, int]
    version: int
    model: str | None
    sizes: tuple[int, ...]
    embeddings: bool
    fields: dict[str, str]
    writable: bool
    ready: bool


# Requests


def query_body(query: Query) -> dict[str, Any]:
    """JSON of a query, without search options."""
    return {
        "text": query.text,
        "image": _base64(query.image),
        "instruction": query.instruction,
        "target": label(query.target),
    }


def options_body(k: int, options: SearchKeywords, explain: bool) -> dict[str, Any]:
    """JSON of search options."""
    chosen = search_options(k, **options)
    body = {field.name: getattr(chosen, field.name) for field in fields(chosen)}
    return body | {"ids": None if chosen.ids is None else list(chosen.ids), "explain": explain}


def item_body(item: Item) -> dict[str, Any]:
    """JSON of an item to write."""
    if not isinstance(item, Item):
        raise GeniusError(f"Only an Item can be written, not {item!r}. Write Item(id, text=..., image=...).")
    return {"id": item.id, "text": item.text, "image": _base64(item.image), "metadata": item.metadata}


def item_bodies(items: Iterable[Item | BadItem], bad: list[BadItem]) -> Iterator[dict[str, Any]]:
    """JSON of the readable items. The others are appended to `bad`."""
    for item in items:
        if isinstance(item, BadItem):
            bad.append(item)
            continue
        try:
            yield item_body(item)
        except BadImage as error:
            bad.append(BadItem(item.id, str(error)))


def chunks(bodies: Iterable[dict[str, Any]], most: int) -> Iterator[list[dict[str, Any]]]:
    """Split bodies into lists of at most `most` bodies and `MAX_BYTES`."""
    chunk: list[dict[str, Any]] = []
    size = 0
    for body in bodies:
        length = len(body["image"] or "") + len(body["text"] or "")
        if chunk and (len(chunk) == most or size + length > MAX_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(body)
        size += length
    if chunk:
        yield chunk


def label(target: Modality | str | None) -> str | None:
    """Name of a target modality."""
    modality = Modality.parse(target)
    return None if modality is None else modality.label


def segment(id: str) -> str:
    """Quote an id as one segment of a URL. Dots are quoted too, because ".." would change the path."""
    return quote(id, safe="").replace(".", "%2E")


def _base64(source: ImageSource | None) -> str | None:
    """The bytes of an image file. The service checks them."""
    if source is None:
        return None
    from genius.data.images import image_bytes  # loads numpy

    return base64.b64encode(image_bytes(source)).decode()


# Responses


def read_item(got: Mapping[str, Any], fetch: FetchImage) -> Item:
    """An item, whose image is fetched when it is read."""
    id, text, metadata = got["id"], got.get("text"), got.get("metadata") or {}
    return Item(id, text, None, metadata) if got.get("image_url") is None else RemoteItem(id, text, metadata, fetch)


def read_coded_item(got: Mapping[str, Any], fetch: FetchImage) -> CodedItem:
    """An item with its codes."""
    return CodedItem(read_item(got, fetch), tuple(got["codes"]))


def read_page(got: Mapping[str, Any], fetch: FetchImage) -> tuple[int, list[Item]]:
    """Total number of items, and the items of one page."""
    return got["total"], [read_item(one, fetch) for one in got["items"]]


def read_result(got: Mapping[str, Any], fetch: FetchImage) -> SearchResult:
    """A search result."""
    hits = (
        Hit(
            one["id"],
            float(one["score"]),
            Modality.parse(one["modality"]),
            tuple(one["codes"]),
            read_item(one, fetch),
        )
        for one in got["hits"]
    )
    branches = (got.get("tree") or {"branches": []})["branches"]
    return SearchResult(
        hits=Hits(hits),
        branches=[Branch(tuple(one["codes"]), one["logprob"], one["items"]) for one in branches],
        candidates=got["candidates"],
        seconds=dict(got["seconds"]),
    )


def read_code_page(got: Mapping[str, Any], fetch: FetchImage) -> CodePage:
    """A page of the code tree."""
    children = [CodeChild(one["code"], one["items"], one["example"]["id"]) for one in got["children"]]
    return CodePage(got["total"], got["ids"], children, [read_coded_item(one, fetch) for one in got["items"]])


def read_index(got: Mapping[str, Any]) -> ServedIndex:
    """Description of an index."""
    known = {field.name: got[field.name] for field in fields(ServedIndex)}
    return ServedIndex(**known | {"sizes": tuple(got["sizes"])})


def read_job(got: Mapping[str, Any]) -> JobStatus:
    """Status of a job."""
    known = {field.name: got[field.name] for field in fields(JobStatus)}
    return JobStatus(**known | {"bad": [BadItem(one["id"], one["reason"]) for one in got["bad"]]})
