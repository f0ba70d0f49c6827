"""Work on many rows in blocks, each by a single thread, on as many threads as torch has.

Torch's own threads wait for each other after every operation; blocks do not.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch


def over_blocks(work: Callable[[slice], None], n: int, rows: int) -> None:
    """Call work(slice) for consecutive slices of at most `rows` of n rows.

    Raises:
        Exception: The first exception of a block.
    """
    blocks = [slice(start, min(start + rows, n)) for start in range(0, n, rows)]
    threads = min(torch.get_num_threads(), len(blocks))
    if threads <= 1:
        for block in blocks:
            work(block)
        return
    before = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            list(pool.map(work, blocks))
    finally:
        torch.set_num_threads(before)  # it is per thread, but new threads take over the last value set
