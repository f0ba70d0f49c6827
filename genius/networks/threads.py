"""`over_blocks` for work that uses torch."""

from collections.abc import Callable

import torch

from genius.runtime import threads

DEVICE_FACTOR = 8  # a GPU takes larger blocks than a core


def over_blocks(work: Callable[[slice], None], n: int, rows: int, device: torch.device) -> None:
    """As `genius.runtime.threads.over_blocks`, with one torch thread in each block.

    Work on another device than the CPU has larger blocks, one after the other.
    """
    if device.type != "cpu":
        for start in range(0, n, rows * DEVICE_FACTOR):
            work(slice(start, min(start + rows * DEVICE_FACTOR, n)))
        return
    before = torch.get_num_threads()
    try:
        threads.over_blocks(work, n, rows, initializer=lambda: torch.set_num_threads(1))
    finally:
        torch.set_num_threads(before)  # it is per thread, but new threads take over the last value set
