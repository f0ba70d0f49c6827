"""The OpenAPI description: built from routes and schemas, plus request bodies as JSON or forms."""

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from genius.serve.bodies import FORM, JSON, form_fields
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
    model: type[BaseModel], examples: Mapping[str, Any], form: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Describe the body of an operation: JSON or a form. `form` replaces the fields of `form_fields`."""
    form_schema = {"type": "object", "properties": dict(form or form_fields(model)), "additionalProperties": False}
    content = {
        JSON: {"schema": {"$ref": REF.format(model=model.__name__)}, "examples": dict(examples)},
        FORM: {"schema": form_schema},
    }
    return {"requestBody": {"required": True, "content": content}}


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
