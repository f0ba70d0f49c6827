"""Kernels compiled by numba and cached on disk, where a folder can be written to.

numba looks for a folder in NUMBA_CACHE_DIR, beside the source file and in the user's cache folder, and raises if it can
write to none of them. Here a temporary folder comes next, then no cache at all: kernels are compiled in every process.
"""

import os
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numba
from numba import njit
from numba.core.caching import FunctionCache

config: Any = numba.config  # its names are made when it is imported


def compiled(function: Callable[..., Any]) -> Any:
    """Decorator: compile a function at its first call, without Python objects and without the GIL."""
    kernel: Any = njit(nogil=True)(function)
    cache = _cache(function)
    if cache is not None and hasattr(kernel, "enable_caching"):  # not so with NUMBA_DISABLE_JIT
        kernel._cache = cache
    return kernel


class KernelCache(FunctionCache):
    """The cache of one kernel. A damaged, unreadable or full one costs time and raises nothing."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the compiled kernel for a signature; None if it has to be compiled."""
        try:
            return super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]
        except Exception:
            with suppress(Exception):
                self.flush()  # type: ignore[no-untyped-call]  # a damaged file would be read again by `save_overload`
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep a compiled kernel."""
        with suppress(Exception):
            super().save_overload(sig, data)  # type: ignore[no-untyped-call]


def _cache(function: Callable[..., Any]) -> KernelCache | None:
    before = config.CACHE_DIR
    for folder in (lambda: before, _temporary_folder):
        try:
            config.CACHE_DIR = folder()
            return KernelCache(function)  # type: ignore[no-untyped-call]
        except (RuntimeError, OSError):  # no folder that can be written to
            continue
        finally:
            config.CACHE_DIR = before
    return None


def _temporary_folder() -> str:
    """Return a folder of this user. Raises OSError if there is none that only this user can write to.

    The cache holds code. In a folder that others can write to, they could put theirs.
    """
    if not hasattr(os, "getuid"):  # Windows has a temporary folder for each user
        return str(Path(tempfile.gettempdir(), "genius-kernels"))
    folder = Path(tempfile.gettempdir(), f"genius-kernels-{os.getuid()}")
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{folder} belongs to others")
    return str(folder)
