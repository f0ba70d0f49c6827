"""Wording: numbers with their nouns."""


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """A number with its noun.

    >>> counted(1, "item"), counted(2, "item"), counted(1_000, "query", "queries")
    ('1 item', '2 items', '1,000 queries')
    """
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"
