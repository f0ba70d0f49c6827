"""What can go wrong, as sentences a user can act on. Every error this package raises on purpose is a GeniusError."""


class GeniusError(Exception):
    """Base of all errors raised on purpose; its message says what was wrong and what to do next."""


class BadImage(GeniusError):
    """An image that cannot be read."""


class BadItem(GeniusError):
    """An item or query that cannot be indexed or asked. `id` names it."""

    def __init__(self, id: str, reason: str) -> None:
        super().__init__(id, reason)  # so that it can be sent from one process to another
        self.id = id
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.id}: {self.reason}"


class BadData(GeniusError):
    """A data file or folder that cannot be read as what it should be."""


class BadModel(GeniusError):
    """A model folder that is incomplete, damaged, or does not fit."""


class BadIndex(GeniusError):
    """An index folder that is incomplete, damaged, or belongs to another model."""


class MissingExtra(GeniusError, ImportError):
    """An optional dependency is not installed; the message says how to install it."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f'{what} needs more packages. Install them with: pip install "genius-search[{extra}]"')
