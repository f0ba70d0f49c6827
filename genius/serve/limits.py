"""Load limits: the errors of an overloaded service, and a budget for bytes that wait in memory."""

import threading

from genius.errors import GeniusError


class ServiceBusy(GeniusError):
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
        """Reserve `size` bytes. Raises ServiceBusy if they do not fit."""
        with self._lock:
            if self.used and self.used + size > self.limit:
                raise ServiceBusy(
                    f"{self.used / 1e6:,.0f} MB are waiting to be written; {size / 1e6:,.1f} MB more exceed the limit. "
                    "Try again later."
                )
            self.used += size

    def release(self, size: int) -> None:
        """Give `size` bytes back."""
        with self._lock:
            self.used -= size
