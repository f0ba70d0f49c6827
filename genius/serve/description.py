"""The description of the service (OpenAPI), made from routes and schemas, with the limits of this service in it."""

from collections.abc import Collection, Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from genius.serve.schemas import LIMIT, Bulk, NewItem, Put, Search, SearchBatch
from genius.serve.settings import Settings

REF = "#/components/schemas/{model}"
BODIES = (Search, SearchBatch, Put, NewItem, Bulk)
TAGS = [
    {"name": "search", "description": "Find items with words, images, or both."},
    {"name": "items", "description": "Read, add, replace and delete items."},
    {"name": "codes", "description": "The tree of IDs: what has which codes."},
    {"name": "jobs", "description": "Additions of many items, in the background."},
    {"name": "service", "description": "What is served, and how it is doing."},
]
ABOUT = (
    "Search for images, texts and pairs by generating the ID of the answer. Every error is "
    '`{"error": {"code", "message", "field"}}`. Where several indexes are served, `?index=NAME` says which is meant.'
)


def body_of(
    model: type[BaseModel],
    examples: Mapping[str, Any],
    files: Collection[str] = (),
    form: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The body of an operation: JSON, or a form with the same fields. files: which are images; form: other fields."""
    schema = model.model_json_schema(ref_template=REF)
    fields = form or {name: _in_form(name, value, files) for name, value in schema["properties"].items()}
    described = {"type": "object", "properties": dict(fields), "additionalProperties": False}
    content = {
        "application/json": {"schema": {"$ref": REF.format(model=model.__name__)}, "examples": dict(examples)},
        "multipart/form-data": {"schema": described},
    }
    return {"requestBody": {"required": True, "content": content}}


def _in_form(name: str, schema: dict[str, Any], files: Collection[str]) -> dict[str, Any]:
    """A field as a form has it: nothing is null there, an image is a file, and an object is JSON in a text."""
    if name in files:
        return {"type": "string", "format": "binary", "description": "An image file."}
    kept = {key: value for key, value in schema.items() if key not in ("anyOf", "default", "examples")}
    for choice in schema.get("anyOf", ()):
        if choice.get("type") != "null":
            kept |= choice
    if kept.get("type") == "object" or "$ref" in kept.get("items", {}):
        return {"type": "string", "contentMediaType": "application/json", "description": kept.get("description", "")}
    return kept


def description_of(app: FastAPI) -> dict[str, Any]:
    """OpenAPI 3.1, made once."""
    if app.openapi_schema is None:
        made = get_openapi(
            title=app.title, version=app.version, description=ABOUT, routes=app.routes, tags=app.openapi_tags
        )
        schemas = made["components"]["schemas"]
        schemas |= models_json_schema([(model, "validation") for model in BODIES], ref_template=REF)[1]["$defs"]
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        made["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        made["security"] = [{}, {"key": []}]  # keys only where the operator has set some
        _fill_limits(made, app.state.settings)
        app.openapi_schema = made
    return app.openapi_schema


def _fill_limits(value: Any, settings: Settings) -> None:
    """In place of the name of a setting stands its value, as JSON schema says it of numbers, texts and lists."""
    if isinstance(value, list):
        for one in value:
            _fill_limits(one, settings)
    elif isinstance(value, dict):
        if isinstance(value.get(LIMIT), str):
            word = {"string": "maxLength", "array": "maxItems"}.get(value["type"], "maximum")
            value[word] = getattr(settings, value.pop(LIMIT))
        for one in value.values():
            _fill_limits(one, settings)
