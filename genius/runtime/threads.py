"""Number of threads, and work on many rows in blocks, each by a single thread.

Threads inside an operation wait for each other after every operation; blocks do not.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from threadpoolctl import threadpool_limits

_chosen: int | None = None
_products: "threadpool_limits | None" = None  # of numpy's matrix products


def thread_count() -> int:
    """Threads that GENIUS uses: those of `set_thread_count`, or `OMP_NUM_THREADS`, or one for each usable core."""
    if _chosen is not None:
        return _chosen
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    if wanted.isdigit() and int(wanted) > 0:
        return int(wanted)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def set_thread_count(count: int | None) -> None:
    """Choose the number of threads, numpy's included; None restores the default.

    Models that are already loaded keep theirs.
    """
    global _chosen, _products
    from threadpoolctl import threadpool_limits

    if _products is not None:
        _products.restore_original_limits()
    _chosen = count
    _products = None if count is None else threadpool_limits(count, user_api="blas")


def over_blocks(
    work: Callable[[slice], None], n: int, rows: int, initializer: Callable[[], object] = lambda: None
) -> None:
    """Call work(slice) for consecutive slices of at most `rows` of n rows.

    Args:
        work: Is called on up to `thread_count` threads at once. Its operations should use one thread each.
        n: Number of rows.
        rows: Rows of a block.
        initializer: Called once by each new thread.

    Raises:
        Exception: The first exception of a block.
    """
    blocks = [slice(start, min(start + rows, n)) for start in range(0, n, rows)]
    threads = min(thread_count(), len(blocks))
    if threads <= 1:
        for block in blocks:
            work(block)
        return
    with ThreadPoolExecutor(threads, initializer=initializer) as pool:
        list(pool.map(work, blocks))
