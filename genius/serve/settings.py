"""Settings of the service: where it listens, who may do what, and the limits that keep it standing.

Knows no web framework and no index.
"""

import ipaddress
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Settings:
    """Every limit in one place. Sizes are in bytes, times in seconds.

    read_keys, write_keys: SHA-256 digests of the keys (see `keys`). Reading is open to all unless there are read keys.
      Writing is open to all only on the loopback interface and only if there are no keys at all.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    read_keys: frozenset[bytes] = field(default=frozenset(), repr=False)
    write_keys: frozenset[bytes] = field(default=frozenset(), repr=False)
    read_only: bool = False
    hosts: tuple[str, ...] = ()  # further names under which the service may be asked, beside `host` and localhost
    origins: tuple[str, ...] = ()  # web pages of these origins may call the service (CORS); none by default
    rate_limit: float | None = None  # requests a second of one client, in the long run
    rate_burst: int = 100  # requests that one client may make at once

    max_body: int = 20_000_000
    max_bulk_body: int = 100_000_000
    max_bodies: int = 400_000_000  # of all requests that are in work
    max_pixels: int = 40_000_000
    max_text: int = 10_000  # characters
    max_id: int = 512  # characters
    max_metadata: int = 65_536  # as JSON
    max_ids: int = 10_000  # in a filter
    max_k: int = 200
    max_beam: int = 500
    max_budget: int = 10_000
    max_queries: int = 64  # in one batch search
    max_items: int = 5_000  # in one bulk addition
    max_page: int = 200  # items listed at once

    max_batch: int = 32  # queries encoded together
    max_waiting: int = 256  # queries in the queue
    deadline: float = 10.0  # a query that has waited longer is refused
    max_jobs: int = 8  # bulk additions that wait
    max_waiting_bytes: int = 400_000_000  # of images and texts that wait to be written
    refresh: float = 2.0  # how often new versions of an index are looked for

    header_seconds: float = 10.0
    body_seconds: float = 30.0
    keep_alive: float = 15.0
    shutdown_seconds: float = 10.0
    max_connections: int = 1000

    @property
    def loopback(self) -> bool:
        """Whether only programs on the same machine can reach the service."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def writable(self) -> bool:
        """Whether anyone at all may write."""
        return not self.read_only and (bool(self.write_keys) or (self.loopback and not self.read_keys))
