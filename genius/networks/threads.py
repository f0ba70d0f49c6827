"""`over_blocks` for work that uses torch."""

from collections.abc import Callable

import torch

from genius.runtime import threads


def over_blocks(work: Callable[[slice], None], n: int, rows: int) -> None:
    """As `genius.runtime.threads.over_blocks`, with one torch thread in each block."""
    before = torch.get_num_threads()
    try:
        threads.over_blocks(work, n, rows, initializer=lambda: torch.set_num_threads(1))
    finally:
        torch.set_num_threads(before)  # it is per thread, but new threads take over the last value set
