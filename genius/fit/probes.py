"""Sentences that people might search a collection of images with, for encoders whose collection has no texts."""

from itertools import product

SUBJECTS = (
    "a dog", "a cat", "two children", "an old man", "a crowd of people", "a red car", "a bicycle", "a city street",
    "mountains", "a beach", "a forest", "a flower", "food on a plate", "a cup of coffee", "a kitchen", "a bedroom",
    "a map", "a chart", "a drawing", "a logo", "a black dress", "shoes", "a portrait of a woman", "a bird", "a horse",
    "a boat", "an airplane", "a building", "a bridge", "snow", "a sunset", "a football match",
)  # fmt: skip
FORMS = ("{}", "{} in the background", "a close-up of {}", "{} at night", "{} on a white background", "a photo of {}")


def probe_texts() -> list[str]:
    """About two hundred short descriptions."""
    return [form.format(subject) for form, subject in product(FORMS, SUBJECTS)]
