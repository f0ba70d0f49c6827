"""What happens when more is asked of the service than it can do: Busy, TooLate, and Room, which says how much fits.

Knows nothing of queries or items.
"""

import threading

from genius.errors import GeniusError


class Busy(GeniusError):
    """Too much waits already, the index is still loading, or the service is stopping. Later it may work."""


class TooLate(GeniusError):
    """A query that nobody had begun to work on when its deadline passed."""


class Room:
    """So many bytes may wait at once. Used from many threads.

    What comes into an empty room is always let in: limits on a single request are the business of others.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.used = 0
        self._lock = threading.Lock()

    def take(self, size: int) -> None:
        with self._lock:
            if self.used and self.used + size > self.size:
                raise Busy(
                    f"{self.used / 1e6:,.0f} MB wait to be written, and {size / 1e6:,.1f} MB more would be too many. "
                    "Try again later."
                )
            self.used += size

    def give_back(self, size: int) -> None:
        with self._lock:
            self.used -= size
