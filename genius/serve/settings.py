"""Settings of the service: where it listens, the keys, and the limits of load. `limits` has those of single values."""

import ipaddress
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Settings:
    """How the service runs. Sizes are in bytes and times in seconds where nothing else is said.

    Without read keys, everyone may read. Without any keys, everyone may write on the loopback interface and nobody
    elsewhere. `read_keys` and `write_keys` hold SHA-256 digests (see `keys`).
    """

    host: str = "127.0.0.1"
    port: int = 8000
    read_keys: frozenset[bytes] = field(default=frozenset(), repr=False)
    write_keys: frozenset[bytes] = field(default=frozenset(), repr=False)
    read_only: bool = False
    hosts: tuple[str, ...] = ()  # accepted host names besides `host` and localhost
    origins: tuple[str, ...] = ()  # origins whose web pages may call the service (CORS)
    rate_limit: float | None = None  # sustained requests per second of one client
    rate_burst: int = 100  # requests that one client may send at once

    max_body: int = 20_000_000
    max_bulk_body: int = 100_000_000
    max_bodies: int = 400_000_000  # of all requests being served

    max_batch: int = 32  # queries encoded together
    max_waiting: int = 256  # queries, or single writes, in the queue
    deadline: float = 10.0  # queries that waited longer are refused
    max_jobs: int = 8  # unfinished bulk additions
    max_waiting_bytes: int = 400_000_000  # of items waiting to be written
    refresh: float = 2.0  # interval between checks for new versions of an index

    body_seconds: float = 30.0
    keep_alive: float = 15.0
    shutdown_seconds: float = 10.0
    max_connections: int = 1000

    @property
    def max_waiting_images(self) -> int:
        """Queries whose images wait for a decoder: half of the places, so that texts find one."""
        return max(1, self.max_waiting // 2)

    @property
    def loopback(self) -> bool:
        """Whether only programs on this machine can reach the service."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def writable(self) -> bool:
        """Whether any client may write."""
        return not self.read_only and (bool(self.write_keys) or (self.loopback and not self.read_keys))
