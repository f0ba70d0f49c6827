"""Examples of requests and responses for the OpenAPI description. A test sends every request."""

from typing import Any

IMAGE = "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAIAAABLbSncAAAAEUlEQVR42mP8z4AdMDEMKQkAzUEBD7t4NqoAAAAASUVORK5CYII="
"""A small red square."""

SEARCH_REQUESTS: dict[str, Any] = {
    "text": {"summary": "Text", "value": {"text": "a sleepy animal", "k": 5}},
    "image": {"summary": "An image", "value": {"image": IMAGE, "target": "image"}},
    "both": {
        "summary": "An image and text",
        "value": {"image": IMAGE, "text": "the same in blue", "instruction": "Find the product photo."},
    },
    "filter": {
        "summary": "With a filter, and with the decoder's beams",
        "value": {"text": "a star", "where": "modality = 'text'", "k": 3, "explain": True},
    },
}
ITEM_RESPONSE: dict[str, Any] = {
    "example": {
        "id": "cats/grooming",
        "modality": "image,text",
        "text": "How to groom a cat",
        "metadata": {"lang": "en"},
        "codes": [2, 17, 203],
        "image_url": "/v1/images/cats%2Fgrooming?index=photos",
    }
}
SEARCH_RESPONSE: dict[str, Any] = {
    "example": {
        "index": "photos",
        "version": 12,
        "items": 10_034,
        "hits": [{**ITEM_RESPONSE["example"], "score": 0.8312}],
        "seconds": {
            "queue": 0.0004,
            "encode": 0.0112,
            "generate": 0.0047,
            "rerank": 0.0009,
            "read": 0.0021,
            "total": 0.0195,
        },
        "batch": 3,
        "candidates": 873,
        "tree": None,
        "names": None,
    }
}
PUT_REQUESTS: dict[str, Any] = {
    "text": {"summary": "A text", "value": {"text": "How to groom a cat", "metadata": {"lang": "en", "year": 2024}}},
    "image": {"summary": "An image", "value": {"image": IMAGE}},
    "pair": {"summary": "An image with its text", "value": {"image": IMAGE, "text": "A red square"}},
}
ADD_REQUESTS: dict[str, Any] = {
    "two": {
        "summary": "A text and an image",
        "value": {
            "items": [
                {"id": "cats/grooming", "text": "How to groom a cat", "metadata": {"lang": "en"}},
                {"id": "square.png", "image": IMAGE},
            ]
        },
    }
}
BATCH_REQUESTS: dict[str, Any] = {
    "two": {
        "summary": "Two queries",
        "value": {"queries": [{"text": "a cat", "target": "image"}, {"text": "a dog", "k": 3}]},
    }
}
