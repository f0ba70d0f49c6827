"""Settings of the C library's memory allocator."""

import contextlib
import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # from malloc.h
_BLOCK = 1 << 20  # bytes
_LARGEST_BLOCK = 32 << 20  # the highest threshold that glibc accepts
_NEVER = 2**31 - 1


def return_memory() -> None:
    """Return freed memory to the system: glibc's per-thread heaps only grow, and large blocks move into them over time.

    For searching and serving.
    """
    _set({_ARENA_MAX: 2, _MMAP_THRESHOLD: _BLOCK})


def keep_memory() -> None:
    """Keep freed memory for the next allocation.

    For training: each step allocates the same large blocks again, and asking the system for them takes as long as
    computing with them.
    """
    _set({_MMAP_THRESHOLD: _LARGEST_BLOCK, _TRIM_THRESHOLD: _NEVER})


def _set(options: dict[int, int]) -> None:
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # other C libraries have no mallopt
            libc = ctypes.CDLL(None)
            for option, value in options.items():
                libc.mallopt(option, value)
