"""Number of threads, and work in blocks: every row once, on several threads, errors out."""

import threading
from collections.abc import Iterator

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from genius.runtime.threads import over_blocks, set_thread_count, thread_count


@pytest.fixture
def two_threads() -> Iterator[None]:
    set_thread_count(2)
    yield
    set_thread_count(None)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("n", [0, 1, 9, 10, 11, 95])
def test_every_row_once(n: int) -> None:
    seen = np.zeros(n)

    def work(block: slice) -> None:
        assert block.stop - block.start <= 10
        seen[block] += 1

    over_blocks(work, n, rows=10)
    assert (seen == 1).all()


@pytest.mark.usefixtures("two_threads")
def test_two_blocks_run_at_once() -> None:
    both = threading.Barrier(2)
    over_blocks(lambda block: (both.wait(10), None)[1], 2, rows=1)  # a single thread would wait in vain


@pytest.mark.usefixtures("two_threads")
def test_initializer_runs_in_each_thread() -> None:
    both, started = threading.Barrier(2), []
    over_blocks(lambda block: (both.wait(10), None)[1], 2, 1, initializer=lambda: started.append(threading.get_ident()))
    assert len(set(started)) == 2


@pytest.mark.usefixtures("two_threads")
def test_an_error_comes_out() -> None:
    def work(block: slice) -> None:
        if block.start == 20:
            raise ValueError("row 20")

    with pytest.raises(ValueError, match="row 20"):
        over_blocks(work, 100, rows=10)


@pytest.mark.parametrize(("value", "expected"), [("3", 3), ("0", None), ("two", None), ("", None)])
def test_default_follows_the_environment(monkeypatch: pytest.MonkeyPatch, value: str, expected: int | None) -> None:
    set_thread_count(None)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    cores = thread_count()
    assert cores >= 1
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    assert thread_count() == (expected or cores)


def product_threads() -> set[int]:
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


def test_matrix_products_of_numpy_use_the_threads_that_were_chosen() -> None:
    with threadpool_limits(2, user_api="blas"):  # as on a machine of two cores
        set_thread_count(1)
        assert product_threads() == {1}
        set_thread_count(None)
        assert product_threads() == {2}
