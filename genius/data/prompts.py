"""Prompts for benchmarks of one's own: four per task, for any domain."""

PROMPTS: dict[int, tuple[str, str, str, str]] = {
    0: (
        "Find the image that these words describe.",
        "Show me an image for this text.",
        "Which image fits the text?",
        "Look for a picture of what the text says.",
    ),
    1: (
        "Find the text that answers these words.",
        "Return a text that belongs to this one.",
        "Which text fits what is written here?",
        "Look for a text about the same thing.",
    ),
    2: (
        "Find the image with its text that these words describe.",
        "Show me an image together with its text for these words.",
        "Which image and text fit these words?",
        "Look for a labelled picture of what the text says.",
    ),
    3: (
        "Find the text that describes this image.",
        "Return the words that belong to this image.",
        "Which text fits the image?",
        "Look for a text that says what the image shows.",
    ),
    4: (
        "Find an image that goes with this one.",
        "Show me another image of the same thing.",
        "Which other image fits this one?",
        "Look for an image like this one.",
    ),
    6: (
        "Find the text that answers these words about the image.",
        "Return a text for the image and the words together.",
        "Which text fits both the image and the words?",
        "Use the image and the words to find a text.",
    ),
    7: (
        "Find the image that fits this image and these words.",
        "Show me an image like this one, as the words ask.",
        "Which image is meant by the image and the words together?",
        "Use the image and the words to find another image.",
    ),
    8: (
        "Find the image with its text that fits this image and these words.",
        "Show me an image and its text, as the image and the words ask.",
        "Which image and text are meant by the image and the words together?",
        "Use the image and the words to find an image with its text.",
    ),
}
"""Prompts by task id."""
