"""Request and response models: fields, types, limits and descriptions. /docs shows them."""

import base64
import binascii
import json
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from genius.search.options import Mode, SearchOptions
from genius.serve import limits
from genius.serve.jobs import JobState
from genius.serve.writer import WriteStatus


def invalid(sentence: str) -> PydanticCustomError:
    """A validation error. The sentence follows the name of the field."""
    return PydanticCustomError("genius", "{sentence}", {"sentence": sentence})


def _whole_float_to_int(value: Any) -> Any:
    """JSON does not distinguish 10.0 from 10."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _decode_image(value: Any) -> Any:
    """Decode Base64. Bytes, which come from a form, are returned unchanged."""
    if not isinstance(value, str):
        return value
    if value.startswith("data:"):
        raise invalid("is a data URL. Send only the part after the comma.")
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError) as error:
        raise invalid("is not Base64. Send an image file as Base64, or use multipart/form-data.") from error


def _check_metadata(value: dict[str, Any]) -> dict[str, Any]:
    try:
        size = len(json.dumps(value, allow_nan=False))
    except ValueError as error:
        raise invalid("holds a number that JSON cannot represent. Send it as a string.") from error
    if size > limits.MAX_METADATA:
        raise invalid(f"takes {size:,} bytes as JSON; at most {limits.MAX_METADATA:,} are allowed.")
    return value


Text = Annotated[str, Field(max_length=limits.MAX_TEXT)]
Id = Annotated[str, Field(max_length=limits.MAX_ID)]
PositiveInt = Annotated[int, BeforeValidator(_whole_float_to_int), Field(ge=1)]
Metadata = Annotated[dict[str, Any], AfterValidator(_check_metadata)]
Image = Annotated[
    bytes,
    BeforeValidator(_decode_image),
    WithJsonSchema({"type": "string", "contentEncoding": "base64", "description": "An image file as Base64."}),
]
ModalityName = Literal["image", "text", "image,text"]


# Requests


class RequestModel(BaseModel):
    """Base of all request bodies. Unknown fields and values of another type are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)


class SearchRequest(RequestModel):
    """A query (text, an image, both, or an indexed item) and the search options."""

    text: Text | None = Field(None, description="Text of the query.", examples=["a sleepy animal"])
    image: Image | None = Field(None, description="Image of the query, alone or with text.")
    like: Id | None = Field(
        None,
        description="Id of an item to search with: its image and its text. With `text`, its image and this text "
        "(`this, but in red`); for an item without an image, both texts.",
    )
    instruction: Text | None = Field(
        None,
        description="Instruction that describes the target. By default it is derived from `target`.",
        examples=["Find the product photo."],
    )
    target: ModalityName | None = Field(None, description="Modality of the items to find. Default: all.")
    k: PositiveInt = Field(SearchOptions.k, le=limits.MAX_K, description="Number of hits.")
    mode: Mode = Field(
        SearchOptions.mode, description="`fast` gives the best results; `rerank` and `generate` are the paper's modes."
    )
    beam: PositiveInt = Field(
        SearchOptions.beam, le=limits.MAX_BEAM, description="Beam width of the modes `rerank` and `generate`."
    )
    budget: Annotated[PositiveInt, Field(le=limits.MAX_BUDGET)] | None = Field(
        SearchOptions.budget,
        description="Maximum number of items that mode `fast` ranks. By default it follows the size of the index.",
    )
    where: str | None = Field(
        None,
        max_length=limits.MAX_WHERE,
        description="Filter: an SQL condition on `id`, `text`, `modality` and the metadata fields that `/v1/indexes` "
        "lists.",
        examples=["year >= 2000 AND lang = 'en'"],
    )
    ids: list[Id] | None = Field(None, max_length=limits.MAX_IDS, description="Search only these items.")
    branch: Annotated[str, Field(max_length=500)] | None = Field(
        None,
        description="Search only items whose IDs start with these codes, joined by `-`; a star matches any code.",
        examples=["0-17"],
    )
    explain: bool = Field(False, description="Also return the decoder's beams (`tree`).")


class SearchBatchRequest(RequestModel):
    """Several queries, each with its own options."""

    queries: list[SearchRequest] = Field(min_length=1, max_length=limits.MAX_QUERIES)


class PutItemRequest(RequestModel):
    """The content of an item: text, an image, or both; and metadata."""

    text: Text | None = Field(None, examples=["How to groom a cat"])
    image: Image | None = None
    metadata: Metadata = Field(
        default_factory=dict,
        description="JSON values by name. Filters can use strings, numbers and booleans.",
        examples=[{"lang": "en", "year": 2024}],
    )


class NewItemRequest(PutItemRequest):
    """An item to add, or to replace the item with the same id."""

    id: Id = Field(min_length=1, pattern=r"\S", examples=["cats/grooming"])


class AddItemsRequest(RequestModel):
    """Many items to add."""

    items: list[NewItemRequest] = Field(min_length=1, max_length=limits.MAX_ITEMS)
    replace: bool = Field(True, description="Replace items with the same id. If false, such items are refused.")


# Responses. These models only describe: building responses with them would take longer than some searches.


class ErrorDetail(BaseModel):
    """Why a request was refused."""

    code: str = Field(description="Stable name of the kind of error.", examples=["invalid"])
    message: str = Field(description="A sentence that says what to change.", examples=["`k` must be at most 200."])
    field: str | None = Field(None, description="Name of the invalid value.", examples=["k"])


class ErrorResponse(BaseModel):
    """A refused or failed request."""

    error: ErrorDetail


class ExampleResponse(BaseModel):
    """An item, without its codes."""

    id: str
    modality: ModalityName
    text: str | None
    metadata: dict[str, Any]
    image_url: str | None = Field(description="Address of the thumbnail; null if the item has no image.")


class ItemResponse(ExampleResponse):
    """An item of the index."""

    codes: list[int] = Field(description="The semantic ID, level by level. The first code is the modality.")


class HitResponse(ItemResponse):
    """An item that was found."""

    score: float = Field(description="Higher is better: a cosine, or a log-probability in mode `generate`.")


class BranchResponse(BaseModel):
    """A beam: a prefix of an ID."""

    codes: list[int]
    logprob: float
    items: int = Field(description="Number of items whose ID starts with these codes.")


class TreeResponse(BaseModel):
    """The decoder's beams, best first."""

    levels: int
    sizes: list[int] = Field(description="Number of codes of each level.")
    branches: list[BranchResponse]


class SearchResponse(BaseModel):
    """Hits, best first, and how they were found."""

    index: str
    version: int
    items: int = Field(description="Number of items in the index.")
    hits: list[HitResponse]
    seconds: dict[str, float] = Field(
        description="Duration of the stages queue, prepare, encode, generate, rerank and read; and total."
    )
    batch: int = Field(description="Number of queries that were encoded together.")
    candidates: int = Field(description="Number of items that were ranked.")
    tree: TreeResponse | None
    names: dict[str, "NameResponse"] | None = Field(
        None, description="With `explain`: names of the codes of hits and beams, by prefix (`0-17`)."
    )


class SearchBatchResponse(BaseModel):
    """One result per query, in the order of the queries."""

    answers: list[SearchResponse]


class PutItemResponse(BaseModel):
    """Result of a write."""

    id: str
    status: WriteStatus
    version: int = Field(description="Version of the index that holds the item.")


class DeleteItemsResponse(BaseModel):
    """Result of a deletion by filter."""

    deleted: int = Field(description="Number of items that were deleted.")
    version: int = Field(description="Version of the index without them.")


class ItemListResponse(BaseModel):
    """A page of items."""

    total: int = Field(description="Number of items that match.")
    items: list[ItemResponse]


class AddItemsResponse(BaseModel):
    """An accepted bulk addition."""

    job: str
    items: int
    location: str = Field(description="Address of the job.")


class RefusedItemResponse(BaseModel):
    """An item that was not added."""

    id: str
    reason: str


class JobResponse(BaseModel):
    """State of a bulk addition. Counts include only items that are on the disk."""

    id: str
    index: str
    state: JobState
    items: int
    done: int
    added: int
    replaced: int
    unchanged: int
    bad: list[RefusedItemResponse] = Field(description="The first hundred refused items.")
    bad_count: int
    created: str
    started: str | None
    finished: str | None
    error: str | None


class JobListResponse(BaseModel):
    """Jobs, newest first."""

    jobs: list[JobResponse]


class NameResponse(BaseModel):
    """The name of a code: words that set its items apart from those of the other codes under the same prefix."""

    name: str
    purity: float = Field(description="Share of the code's items that have the first word of the name.")
    elsewhere: float = Field(description="Share of the items of the other codes that have it.")


class CodeChildResponse(BaseModel):
    """A code of the next level."""

    code: int
    items: int
    example: ExampleResponse


class CodesResponse(BaseModel):
    """The items that match a code pattern, and the codes of the next level."""

    pattern: str
    level: int
    levels: int
    sizes: list[int] = Field(description="Number of codes of each level.")
    total: int = Field(description="Number of items that match.")
    ids: int = Field(description="Number of distinct IDs.")
    children: list[CodeChildResponse] = Field(description="Codes of the next level, most items first, at most 60.")
    more_children: int
    items: list[ItemResponse]
    names: dict[str, NameResponse] = Field(
        description="Names of the codes in this response, by prefix (`0-17`), as far as they have one."
    )
    names_ready: bool = Field(description="Whether names have been made. They are made when they are first needed.")


class IndexResponse(BaseModel):
    """An index."""

    name: str
    items: int
    modalities: dict[str, int]
    version: int
    model: str | None
    levels: int
    sizes: list[int] = Field(description="Number of codes of each level.")
    embeddings: bool
    fields: dict[str, str] = Field(description="Fields for filters and their types: text, number or boolean.")
    writable: bool
    ready: bool


class IndexListResponse(BaseModel):
    """The indexes of the service."""

    indexes: list[IndexResponse]


class ReadyResponse(BaseModel):
    """Whether each index is ready. `failed` names those that cannot be loaded; the others are served."""

    ready: bool
    indexes: dict[str, bool]
    failed: list[str]


class HealthResponse(BaseModel):
    """The process responds."""

    status: Literal["ok"]
