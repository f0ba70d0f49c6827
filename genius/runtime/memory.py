"""Settings of the C library's memory allocator."""

import contextlib
import ctypes
import sys

_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8  # from malloc.h
_BLOCK = 1 << 20  # bytes


def tune_malloc() -> None:
    """Return memory to the system: glibc's per-thread heaps only grow, and large blocks move into them over time."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # other C libraries have no mallopt
            libc = ctypes.CDLL(None)
            libc.mallopt(_M_ARENA_MAX, 2)
            libc.mallopt(_M_MMAP_THRESHOLD, _BLOCK)
