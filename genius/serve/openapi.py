"""The OpenAPI description: built from routes and schemas, plus request bodies as JSON or forms."""

from collections.abc import Collection, Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from genius.serve.schemas import (
    AddItemsRequest,
    NewItemRequest,
    PutItemRequest,
    SearchBatchRequest,
    SearchRequest,
)

REF = "#/components/schemas/{model}"
REQUESTS = (SearchRequest, SearchBatchRequest, PutItemRequest, NewItemRequest, AddItemsRequest)
TAGS = [
    {"name": "search", "description": "Find items with text, images, or both."},
    {"name": "items", "description": "Read, add, replace and delete items."},
    {"name": "codes", "description": "Browse the tree of semantic IDs."},
    {"name": "jobs", "description": "Follow bulk additions."},
    {"name": "service", "description": "The indexes and the state of the service."},
]
ABOUT = (
    "Search for images, texts and pairs by generating the ID of the answer. Every error has the form "
    '`{"error": {"code", "message", "field"}}`. If several indexes are served, `?index=NAME` selects one.'
)


def request_body(
    model: type[BaseModel],
    examples: Mapping[str, Any],
    files: Collection[str] = (),
    form: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Describe the body of an operation: JSON, or a form with the same fields.

    Args:
        model: The request model.
        examples: JSON examples.
        files: Fields that a form sends as files.
        form: The fields of the form, if they differ from those of the model.
    """
    schema = model.model_json_schema(ref_template=REF)
    fields = form or {name: _form_field(name, value, files) for name, value in schema["properties"].items()}
    form_schema = {"type": "object", "properties": dict(fields), "additionalProperties": False}
    content = {
        "application/json": {"schema": {"$ref": REF.format(model=model.__name__)}, "examples": dict(examples)},
        "multipart/form-data": {"schema": form_schema},
    }
    return {"requestBody": {"required": True, "content": content}}


def _form_field(name: str, schema: dict[str, Any], files: Collection[str]) -> dict[str, Any]:
    """A field in a form: never null; images are files; objects are JSON strings."""
    if name in files:
        return {"type": "string", "format": "binary", "description": "An image file."}
    field = {key: value for key, value in schema.items() if key not in ("anyOf", "default", "examples")}
    for choice in schema.get("anyOf", ()):
        if choice.get("type") != "null":
            field |= choice
    if field.get("type") == "object" or "$ref" in field.get("items", {}):
        return {"type": "string", "contentMediaType": "application/json", "description": field.get("description", "")}
    return field


def openapi(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI 3.1 description of the service, built once."""
    if app.openapi_schema is None:
        description = get_openapi(
            title=app.title, version=app.version, description=ABOUT, routes=app.routes, tags=app.openapi_tags
        )
        schemas = description["components"]["schemas"]
        schemas |= models_json_schema([(model, "validation") for model in REQUESTS], ref_template=REF)[1]["$defs"]
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        description["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        description["security"] = [{}, {"key": []}]  # a key is needed only if the operator has set one
        app.openapi_schema = description
    return app.openapi_schema
