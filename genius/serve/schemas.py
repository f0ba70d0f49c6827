"""What clients send and what they get, as data: names, kinds, limits and examples, checked here and shown in /docs.

Limits that the operator sets stand here by the name of the setting (`AtMost`); the settings come with each check. Knows
nothing of HTTP, and reads no index.
"""

import base64
import binascii
import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from genius.serve.settings import Settings

LIMIT = "x-at-most"
"""In a JSON schema: the setting whose value is the limit. The description of the service has the value instead."""
MAX_BLEND = 100.0


def wrong(sentence: str) -> PydanticCustomError:
    """An error whose sentence follows the name of the field."""
    return PydanticCustomError("genius", "{sentence}", {"sentence": sentence})


@dataclass(frozen=True)
class AtMost:
    """Marks a number, text or list that a setting limits. The settings are the context of the validation."""

    setting: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {**handler(schema), LIMIT: self.setting}

    def check(self, value: Any, info: ValidationInfo) -> Any:
        complaint = too_much(_settings(info), self.setting, value)
        if complaint:
            raise wrong(complaint)
        return value


def _settings(info: ValidationInfo) -> Settings:
    assert isinstance(info.context, Settings)
    return info.context


def too_much(settings: Settings, setting: str, value: int | str | list[Any]) -> str | None:
    """What is wrong with a value that is above a limit; None if it is not. The name of the field goes before it."""
    limit = int(getattr(settings, setting))
    if isinstance(value, int):
        return f"is {_short(value)}; at most {limit:,} is allowed." if value > limit else None
    if len(value) <= limit:
        return None
    what = "characters" if isinstance(value, str) else "entries"
    return f"has {len(value):,} {what}; at most {limit:,} are allowed. Send less, or in several requests."


def _short(value: int) -> str:
    return f"{value:,}" if value.bit_length() < 64 else "a very large number"


def _whole(value: Any) -> Any:
    """10.0 is a whole number in JSON."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _image(value: Any) -> Any:
    """Bytes from Base64. Bytes, which came as a file, stay as they are."""
    if not isinstance(value, str):
        return value
    if value.startswith("data:"):
        raise wrong("is a data URL. Send only what stands behind its comma.")
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError) as error:
        raise wrong("is not Base64. Send the bytes of an image file in Base64, or use multipart/form-data.") from error


def _metadata(value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
    limit = _settings(info).max_metadata
    try:
        size = len(json.dumps(value, allow_nan=False))
    except ValueError as error:
        raise wrong("holds a number that JSON has no way to write. Leave it out, or send it as text.") from error
    if size > limit:
        raise wrong(f"takes {size:,} bytes as JSON; at most {limit:,} are allowed. Keep less with the item.")
    return value


def _item_id(value: str) -> str:
    if not value.strip():
        raise wrong("is empty. Give every item an id of its own.")
    return value


Text = Annotated[str, AtMost("max_text")]
Id = Annotated[str, AtMost("max_id")]
NewId = Annotated[str, AtMost("max_id"), AfterValidator(_item_id)]
Whole = Annotated[int, BeforeValidator(_whole), Field(ge=1)]
Metadata = Annotated[dict[str, Any], AfterValidator(_metadata)]
Image = Annotated[
    bytes,
    BeforeValidator(_image),
    WithJsonSchema({"type": "string", "contentEncoding": "base64", "description": "An image file in Base64."}),
]
Kind = Literal["image", "text", "image,text"]
Mode = Literal["fast", "rerank", "generate"]


class Body(BaseModel):
    """Something a client sends: no other fields than these, no values of another type."""

    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)


class Search(Body):
    """A question: words, an image, both, or an item to start from; and how to search."""

    text: Text | None = Field(None, description="Words to search with.", examples=["a sleepy animal"])
    image: Image | None = Field(None, description="An image to search with, alone or with words.")
    like: Id | None = Field(
        None,
        description="The id of an item to search with: its image and its text. With `text`, its image and these "
        "words (`this, but in red`); if it has no image, its text and these words.",
    )
    instruction: Text | None = Field(
        None,
        description="What is wanted, as a sentence. Without one, `target` makes it.",
        examples=["Find the product photo."],
    )
    target: Kind | None = Field(None, description="The kind of items wanted. Without one, all kinds.")
    k: Annotated[Whole, AtMost("max_k")] = Field(10, description="How many hits.")
    mode: Mode = Field("fast", description="`fast` is best; `rerank` and `generate` are the paper's.")
    beam: Annotated[Whole, AtMost("max_beam")] = Field(50, description="Width of the beam search.")
    budget: Annotated[Whole, AtMost("max_budget")] = Field(1000, description="Most items that mode `fast` compares.")
    where: str | None = Field(
        None,
        max_length=10_000,
        description="Only items that satisfy this condition: SQL over `id`, `text`, `modality` and the metadata "
        "fields that `/v1/indexes` lists.",
        examples=["year >= 2000 AND lang = 'en'"],
    )
    ids: Annotated[list[Id], AtMost("max_ids")] | None = Field(None, description="Only items with one of these ids.")
    blend: float = Field(
        0.0,
        ge=0,
        le=MAX_BLEND,
        allow_inf_nan=False,
        description="So many times the log-probability of an item's beam is added to its similarity.",
    )
    explain: bool = Field(False, description="Also tell which beginnings of IDs the decoder wrote (`tree`).")


class SearchBatch(Body):
    """Several questions, each with its own settings."""

    queries: Annotated[list[Search], AtMost("max_queries")] = Field(min_length=1)


class Put(Body):
    """What an item holds: words, an image, or both; and whatever is to come back with a hit."""

    text: Text | None = Field(None, examples=["How to groom a cat"])
    image: Image | None = None
    metadata: Metadata = Field(
        default_factory=dict,
        description="JSON values by name. Text, numbers and booleans can be used in conditions.",
        examples=[{"lang": "en", "year": 2024}],
    )


class NewItem(Put):
    """An item to be added, or to replace the one that has its id."""

    id: NewId = Field(min_length=1, examples=["cats/grooming"])


class Bulk(Body):
    """Many items at once."""

    items: Annotated[list[NewItem], AtMost("max_items")] = Field(min_length=1)
    replace: bool = Field(
        True, description="Whether an item whose id is taken replaces the one that has it; otherwise it is refused."
    )


# What clients get. These describe; they are not used to make answers, which would take longer than some searches.


class Wrong(BaseModel):
    code: str = Field(description="Stays the same for the same kind of error.", examples=["invalid"])
    message: str = Field(
        description="A sentence that says what to do.", examples=["`k` is 999; at most 200 is allowed."]
    )
    field: str | None = Field(None, description="The name of the value that is wrong.", examples=["k"])


class Error(BaseModel):
    """What is wrong."""

    error: Wrong


class ItemAnswer(BaseModel):
    """An item of the index."""

    id: str
    modality: Kind
    text: str | None
    metadata: dict[str, Any]
    codes: list[int] = Field(description="Its ID, level by level. The first one is its kind.")
    image_url: str | None = Field(description="Where a small copy of its image is; null if it has none.")


class HitAnswer(ItemAnswer):
    """An item that was found."""

    score: float = Field(description="Higher is better: a cosine, or a log-probability in mode `generate`.")


class BranchAnswer(BaseModel):
    codes: list[int]
    logprob: float
    items: int


class TreeAnswer(BaseModel):
    """The beams: beginnings of IDs that the decoder wrote, best first."""

    levels: int
    sizes: list[int]
    branches: list[BranchAnswer]


class SearchAnswer(BaseModel):
    """Hits, best first, and how they were found."""

    index: str
    version: int
    items: int = Field(description="How many items the index holds.")
    hits: list[HitAnswer]
    seconds: dict[str, float] = Field(
        description="Of the stages queue, prepare, encode, generate, rerank, read; and total."
    )
    batch: int = Field(description="How many queries were encoded together.")
    candidates: int = Field(description="Number of items that were ranked.")
    tree: TreeAnswer | None


class SearchBatchAnswer(BaseModel):
    answers: list[SearchAnswer]


class PutAnswer(BaseModel):
    id: str
    status: Literal["created", "replaced", "unchanged"]
    version: int = Field(description="The version of the index that holds it.")


class ItemsAnswer(BaseModel):
    total: int = Field(description="How many there are in all.")
    items: list[ItemAnswer]


class BulkAnswer(BaseModel):
    job: str
    items: int
    location: str = Field(description="Where the job can be followed.")


class BadItemAnswer(BaseModel):
    id: str
    reason: str


class JobAnswer(BaseModel):
    """A bulk addition as it stands. The counts grow when items are safe on the disk."""

    id: str
    index: str
    state: Literal["waiting", "running", "done", "failed", "cancelled"]
    items: int
    done: int
    added: int
    replaced: int
    unchanged: int
    bad: list[BadItemAnswer] = Field(description="The first hundred items that were refused.")
    bad_count: int
    created: str
    started: str | None
    finished: str | None
    error: str | None


class JobsAnswer(BaseModel):
    jobs: list[JobAnswer]


class ExampleAnswer(BaseModel):
    id: str
    modality: Kind
    text: str | None
    metadata: dict[str, Any]
    image_url: str | None


class CodeChildAnswer(BaseModel):
    code: int
    items: int
    example: ExampleAnswer


class CodesAnswer(BaseModel):
    """Everything that has certain codes, and which codes come next."""

    pattern: str
    level: int
    levels: int
    sizes: list[int]
    total: int
    ids: int = Field(description="How many distinct IDs.")
    children: list[CodeChildAnswer] = Field(description="The next codes, most items first, at most 60.")
    more_children: int
    items: list[ItemAnswer]


class IndexAnswer(BaseModel):
    name: str
    items: int
    modalities: dict[str, int]
    version: int
    model: str | None
    levels: int
    sizes: list[int]
    embeddings: bool
    fields: dict[str, str] = Field(description="What conditions can name, and what each is: text, number or boolean.")
    writable: bool
    ready: bool


class IndexesAnswer(BaseModel):
    indexes: list[IndexAnswer]


class ReadyAnswer(BaseModel):
    ready: bool
    indexes: dict[str, bool]


class HealthAnswer(BaseModel):
    status: Literal["ok"]
