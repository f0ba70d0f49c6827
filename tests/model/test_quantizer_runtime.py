"""Codes at run time: those of the torch module, on every path; and the report."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from genius.errors import GeniusError
from genius.model import quantizer_runtime
from genius.model.quantizer_runtime import QuantizerRuntime, code_report
from genius.networks.quantizer import Quantizer
from genius.runtime.threads import set_thread_count


def started(shared: bool = False, dim: int = 8, n: int = 3000) -> tuple[Quantizer, np.ndarray, np.ndarray]:
    """A quantizer that knows its data, vectors (n, dim) and modalities (n,)."""
    rng = np.random.default_rng(0)
    z = rng.standard_normal((n, dim)).astype(np.float32)
    modality = rng.integers(0, 3, n)
    quantizer = Quantizer(dim, 10, 3, shared=shared)
    quantizer.initialise(torch.from_numpy(z), torch.from_numpy(modality), iterations=3)
    return quantizer, z, modality


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("beams", [1, 4, 30])
@pytest.mark.parametrize("known", [False, True])
def test_codes_are_those_of_the_torch_module(shared: bool, beams: int, known: bool) -> None:
    quantizer, z, modality = started(shared)
    runtime = quantizer.runtime()
    first = modality if known else None
    expected = quantizer.encode(torch.from_numpy(z), None if first is None else torch.from_numpy(first), beams).numpy()
    codes = runtime.encode(z, first, beams)
    assert codes.dtype == np.uint16
    if beams == 1 or not shared:  # codes of one book in another order have the same sum
        np.testing.assert_array_equal(codes, expected)
    np.testing.assert_allclose(runtime.decode(codes), quantizer.decode(torch.from_numpy(expected)).numpy(), atol=1e-6)
    assert (runtime.sizes, runtime.levels, runtime.codes_per_level) == (quantizer.sizes, 3, 10)


@pytest.mark.parametrize("shared", [False, True])
def test_large_codebooks_need_no_tables(shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    quantizer, z, modality = started(shared)
    expected = quantizer.runtime().encode(z, modality, beams=4)
    monkeypatch.setattr(quantizer_runtime, "LARGEST_TABLES", 0)
    runtime = quantizer.runtime()
    codes = runtime.encode(z, modality, beams=4)
    np.testing.assert_allclose(runtime.decode(codes), runtime.decode(expected), atol=1e-6)


@pytest.mark.parametrize("threads", [1, 2])
def test_codes_do_not_depend_on_the_batch(threads: int) -> None:
    quantizer, z, modality = started()
    runtime = quantizer.runtime()
    set_thread_count(threads)
    try:
        together = runtime.encode(z, modality, beams=2)
    finally:
        set_thread_count(None)
    for rows in (slice(5, 6), slice(1000, 1100)):
        np.testing.assert_array_equal(runtime.encode(z[rows], modality[rows], beams=2), together[rows])


def test_equally_near_codes_give_the_lowest() -> None:
    """Ties in every order, among them pairs whose scores differ by rounding alone."""
    rng = np.random.default_rng(1)
    book = rng.standard_normal((50, 256)).astype(np.float32)
    book = np.concatenate([book, book[::-1]])  # code i and code 99 - i are the same
    runtime = QuantizerRuntime([np.zeros((3, 256), np.float32), book], levels=1)
    z = rng.standard_normal((2000, 256)).astype(np.float32)
    codes = runtime.encode(z, np.zeros(2000, np.int64))[:, 1]
    distances = np.square(z[:, None].astype(np.float64) - book[None, :50]).sum(2)
    np.testing.assert_array_equal(codes, distances.argmin(1))


def test_bad_input_is_named() -> None:
    quantizer, z, modality = started()
    runtime = quantizer.runtime()
    with pytest.raises(GeniusError, match=r"\(n, 8\).*\(3000, 7\)"):
        runtime.encode(z[:, :7])
    with pytest.raises(GeniusError, match="Row 0 has modality code 3, but only 0 to 2"):
        runtime.encode(z, np.full(3000, 3))
    with pytest.raises(GeniusError, match="Row 1 has level 2 code 10, but only 0 to 9"):
        runtime.decode(np.array([[0, 0, 0, 0], [2, 9, 10, 0]]))
    z[7, 3] = np.nan
    with pytest.raises(GeniusError, match=r"1 of 3000 vectors .*row 7"):
        runtime.encode(z, modality)
    with pytest.raises(GeniusError, match="codebooks of shapes"):
        QuantizerRuntime(quantizer.runtime().own_codebooks[:2], levels=3)


def test_report() -> None:
    codes = np.array([[0, 0, 0], [0, 0, 0], [0, 0, 0], [1, 3, 0], [1, 3, 0], [1, 0, 3], [0, 3, 0], [1, 3, 2]])
    report = code_report(codes, (3, 4, 4))
    assert (report.items, report.distinct, report.collisions, report.largest_bucket) == (8, 5, 5, 3)
    assert report.utilisation == pytest.approx((2 / 3, 2 / 4, 3 / 4))
    assert report.perplexity[:2] == pytest.approx((2.0, 2.0))
    shares = np.array([6, 1, 1]) / 8
    assert report.perplexity[2] == pytest.approx(np.exp(-(shares * np.log(shares)).sum()))


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=60))
def test_report_counts_as_sets_do(ids: list[tuple[int, int, int]]) -> None:
    report = code_report(np.array(ids, np.uint16), (3, 4, 4))
    assert report.distinct == len(set(ids))
    assert report.largest_bucket == max(ids.count(one) for one in ids)
    assert report.collisions == sum(ids.count(one) > 1 for one in ids)
