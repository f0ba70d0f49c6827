"""Work in blocks: every row once, errors out, torch's threads as before, and no thread has company in its block."""

from collections.abc import Iterator

import pytest
import torch

from genius.runtime.threads import over_blocks


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("n", [0, 1, 9, 10, 11, 95])
def test_every_row_once_each_block_on_one_thread(n: int) -> None:
    seen, threads = torch.zeros(n), []

    def work(block: slice) -> None:
        seen[block] += 1
        threads.append(torch.get_num_threads())

    over_blocks(work, n, rows=10)
    assert bool((seen == 1).all())
    assert len(threads) == -(-n // 10)
    assert set(threads) <= ({1} if n > 10 else {2})  # a single block has the machine to itself
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_an_error_comes_out_and_threads_stay() -> None:
    def work(block: slice) -> None:
        if block.start == 20:
            raise ValueError("row 20")

    with pytest.raises(ValueError, match="row 20"):
        over_blocks(work, 100, rows=10)
    assert torch.get_num_threads() == 2
