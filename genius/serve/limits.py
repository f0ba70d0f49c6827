"""Limits: of the values in requests, the errors of an overloaded service, and a budget for waiting bytes."""

import threading

from genius.errors import GeniusError

MAX_TEXT = 10_000  # characters
MAX_ID = 512  # characters
MAX_WHERE = 10_000  # characters
MAX_METADATA = 65_536  # bytes as JSON
MAX_PIXELS = 40_000_000
MAX_K = 200
MAX_BEAM = 500
MAX_BUDGET = 10_000
MAX_IDS = 10_000  # in a filter
MAX_QUERIES = 64  # in one batch search
MAX_ITEMS = 5_000  # in one bulk addition
MAX_PAGE = 200  # items in one listing


NOT_READY = "The index is loading, or the service is stopping. Try again in a few seconds."


class ServiceUnavailable(GeniusError):
    """A queue is full, the index is still loading, or the service is stopping. A later attempt may succeed."""


class QueryExpired(GeniusError):
    """The deadline of a query passed before work on it began."""


class ByteBudget:
    """Limits the bytes that wait in memory. Thread-safe.

    An unused budget admits any size: the size of a single request is limited elsewhere.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._lock = threading.Lock()

    def acquire(self, size: int) -> None:
        """Reserve `size` bytes. Raises ServiceUnavailable if they do not fit."""
        with self._lock:
            if self.used and self.used + size > self.limit:
                raise ServiceUnavailable(
                    f"{self.used / 1e6:,.0f} MB are waiting to be written; {size / 1e6:,.1f} MB more exceed the limit. "
                    "Try again later."
                )
            self.used += size

    def release(self, size: int) -> None:
        """Give `size` bytes back."""
        with self._lock:
            self.used -= size
