"""Work on many rows, block by block, on all of torch's threads: each block is done by one thread alone.

Torch's own threads meet at the end of every operation, and the faster one waits: on a busy machine mostly for the
scheduler. Blocks never wait for each other.

Knows nothing of what is done to a block.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch


def over_blocks(work: Callable[[slice], None], n: int, rows: int) -> None:
    """Calls work(slice) for consecutive slices of at most `rows` of n rows; the first exception of one is raised."""
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
        torch.set_num_threads(before)  # the number is each thread's own, but threads yet to start take the last one set
