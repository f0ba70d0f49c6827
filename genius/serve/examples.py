"""Examples for the description of the service. A test asks the service each of them."""

from typing import Any

IMAGE = "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAIAAABLbSncAAAAEUlEQVR42mP8z4AdMDEMKQkAzUEBD7t4NqoAAAAASUVORK5CYII="
"""A small red square."""

SEARCHES: dict[str, Any] = {
    "words": {"summary": "Words", "value": {"text": "a sleepy animal", "k": 5}},
    "image": {"summary": "An image", "value": {"image": IMAGE, "target": "image"}},
    "both": {
        "summary": "An image and words",
        "value": {"image": IMAGE, "text": "the same in blue", "instruction": "Find the product photo."},
    },
    "narrow": {
        "summary": "Among some items, and how they were found",
        "value": {"text": "a star", "where": "modality = 'text'", "k": 3, "explain": True},
    },
}
SEARCH_ANSWER: dict[str, Any] = {
    "example": {
        "index": "photos",
        "version": 12,
        "items": 10_034,
        "hits": [
            {
                "id": "cats/grooming",
                "score": 0.8312,
                "modality": "image,text",
                "codes": [2, 17, 203],
                "text": "How to groom a cat",
                "metadata": {"lang": "en"},
                "image_url": "/v1/images/cats%2Fgrooming?index=photos",
            }
        ],
        "seconds": {
            "queue": 0.0004,
            "prepare": 0.0001,
            "encode": 0.0112,
            "generate": 0.0047,
            "rerank": 0.0009,
            "read": 0.0021,
            "total": 0.0195,
        },
        "batch": 3,
        "candidates": 873,
        "tree": None,
    }
}
ITEM_ANSWER: dict[str, Any] = {
    "example": {
        "id": "cats/grooming",
        "modality": "image,text",
        "text": "How to groom a cat",
        "metadata": {"lang": "en"},
        "codes": [2, 17, 203],
        "image_url": "/v1/images/cats%2Fgrooming?index=photos",
    }
}
PUTS: dict[str, Any] = {
    "text": {"summary": "A text", "value": {"text": "How to groom a cat", "metadata": {"lang": "en", "year": 2024}}},
    "image": {"summary": "An image", "value": {"image": IMAGE}},
    "pair": {"summary": "An image with its text", "value": {"image": IMAGE, "text": "A red square"}},
}
BULKS: dict[str, Any] = {
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
BATCHES: dict[str, Any] = {
    "two": {
        "summary": "Two questions",
        "value": {"queries": [{"text": "a cat", "target": "image"}, {"text": "a dog", "k": 3}]},
    }
}
