"""Lease: a lock in an object store that a killed process cannot hold for ever.

The lease is a Lance dataset without rows. Each change of its state is a new version that Lance commits only if nobody
else has committed that version (a conditional put on S3, Google Cloud Storage and Azure): compare and swap. The holder
renews it regularly. Another process takes it over when it has seen no change for `LEASE_SECONDS`, by its own clock, so
that the clocks of machines need not agree.
"""

import json
import threading
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta

import lance
import pyarrow as pa
from lance.commit import CommitConflictError

from genius.index.lance_errors import store_error

LEASE_SECONDS = 20.0
"""A holder that has not renewed the lease for this time has lost it."""

_POLL = 0.2  # seconds between looks at a lease that another process holds
_KEPT = 64  # versions of the dataset; older ones are removed
_KEY = "lease"  # in the schema metadata


class Lease:
    """A lock among all processes on all machines. A process may use one object from many threads.

    Args:
        uri: Where the dataset of the lease is.
        storage_options: Storage options of Lance.
    """

    def __init__(self, uri: str, storage_options: Mapping[str, str] | None) -> None:
        self._uri = uri
        self._options = None if storage_options is None else dict(storage_options)
        self._threads = threading.RLock()  # writers of this process take turns here
        self._changing = threading.Lock()  # the thread that renews it, or the one that releases it
        self._depth = 0
        self._owner = uuid.uuid4().hex
        self._version = 0
        self._renewed = 0.0  # by the monotonic clock
        self._released = threading.Event()

    @property
    def held(self) -> bool:
        """Whether the lease is ours for some seconds to come."""
        return self._depth > 0 and time.monotonic() - self._renewed < LEASE_SECONDS / 2

    def acquire(self, wait: float) -> bool:
        """Take the lease. Returns False if a living process has held it for `wait` seconds."""
        began = time.monotonic()
        if not self._threads.acquire(timeout=wait):
            return False
        if self._depth:
            self._depth += 1
            return True
        try:
            if not self._take(began + wait):
                self._threads.release()
                return False
        except BaseException:
            self._threads.release()
            raise
        self._depth = 1
        self._released = threading.Event()
        threading.Thread(target=self._keep, args=(self._released,), daemon=True).start()
        return True

    def release(self) -> None:
        """Give the lease back."""
        try:
            self._depth -= 1
            if not self._depth:
                self._released.set()
                # If this fails, others take the lease over when it has expired.
                with self._changing, suppress(CommitConflictError, OSError, RuntimeError, ValueError):
                    self._put(None)
                    if self._version % _KEPT < 2:  # taking and releasing it makes two versions
                        self._remove_old()
        finally:
            self._threads.release()

    def _take(self, deadline: float) -> bool:
        first = seen = -1
        since = 0.0
        while True:
            version, owner = self._read()
            now = time.monotonic()
            if version != seen:
                first = version if first < 0 else first
                seen, since = version, now
            # A put that was repeated after a lost answer may have worked the first time: then the owner is this one.
            if owner is None or owner == self._owner or now - since > LEASE_SECONDS:
                self._version = version
                with suppress(CommitConflictError):  # another process was faster
                    self._put(self._owner)
                    return True
            elif now > deadline and seen != first:  # the holder renews it; one that was killed does not
                return False
            time.sleep(_POLL)

    def _keep(self, released: threading.Event) -> None:
        """Renew the lease until it is released or lost."""
        while not released.wait(LEASE_SECONDS / 4):
            with self._changing:
                if released.is_set():
                    return
                try:
                    self._put(self._owner)
                except CommitConflictError:
                    self._renewed = float("-inf")
                    return
                except (OSError, RuntimeError, ValueError):  # the next renewal may work
                    continue

    def _read(self) -> tuple[int, str | None]:
        """Version and owner of the lease."""
        try:
            dataset = lance.dataset(self._uri, storage_options=self._options)
        except (ValueError, FileNotFoundError) as error:
            if "not found" in str(error).lower() and store_error(error) is None:
                return 0, None
            raise
        owner = json.loads((dataset.schema.metadata or {}).get(_KEY.encode(), b"null"))
        return dataset.version, owner if isinstance(owner, str) else None

    def _put(self, owner: str | None) -> None:
        """Change the owner. Raises CommitConflictError if the lease has changed since it was read."""
        started = time.monotonic()
        schema = pa.schema([("nothing", pa.null())], metadata={_KEY: json.dumps(owner)})
        if self._version:
            # Lance commits an overwrite without retries only as the version after `read_version`.
            operation = lance.LanceOperation.Overwrite(schema, [])
            lance.LanceDataset.commit(
                self._uri, operation, read_version=self._version, max_retries=0, storage_options=self._options
            )
        else:
            try:
                lance.write_dataset(schema.empty_table(), self._uri, mode="create", storage_options=self._options)
            except OSError as error:
                if "already exists" in str(error):
                    raise CommitConflictError(str(error)) from error
                raise
        self._version += 1
        self._renewed = started

    def _remove_old(self) -> None:
        dataset = lance.dataset(self._uri, storage_options=self._options)
        dataset.cleanup_old_versions(older_than=timedelta(seconds=10 * LEASE_SECONDS))
