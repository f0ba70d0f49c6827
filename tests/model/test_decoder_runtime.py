"""The decoder runtime against the decoder's own log-probabilities by teacher forcing, code by code."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from genius.networks.decoder import Decoder
from tests.networks.test_decoder import tiny

SHAPES: list[dict[str, Any]] = [
    {},
    {"whole_vocabulary": True},
    {"residual_input": True},
    {"residual_input": True, "whole_vocabulary": True},
    {"residual_gain": 2.0},
    {"residual_input": True, "residual_gain": 0.5, "query_scale": 1.5},
    {"layers": 0, "residual_gain": 2.0},
]
Codes = NDArray[np.int64]


def some_codes(sizes: tuple[int, ...], *shape: int) -> Codes:
    return np.random.default_rng(0).integers(0, sizes, (*shape, len(sizes)))


def queries(count: int) -> NDArray[np.float32]:
    return np.random.default_rng(1).standard_normal((count, 8)).astype(np.float32)


def teacher_forced(decoder: Decoder, z: NDArray[np.float32], codes: Codes) -> NDArray[np.float32]:
    """z: (q, dim), codes: (q, w, levels) -> (q, w, levels)"""
    with torch.inference_mode():
        repeated = torch.from_numpy(z).repeat_interleave(codes.shape[1], 0)
        return decoder(repeated, torch.from_numpy(codes).flatten(0, 1)).view(codes.shape).numpy()


def picked(log_probs: NDArray[np.float32], codes: Codes) -> NDArray[np.float32]:
    return np.take_along_axis(log_probs, codes[..., None], axis=-1)[..., 0]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_steps_with_reordered_beams_equal_teacher_forcing(shape: dict[str, Any]) -> None:
    decoder, z, rng = tiny(**shape), queries(3), np.random.default_rng(2)
    runtime, sizes = decoder.runtime(), decoder.config.sizes
    codes = some_codes(sizes[:1], 3, 2)
    state, log_probs = runtime.open(z, codes)
    for level, width in ((1, 4), (2, 3), (3, 5)):
        parents = rng.integers(0, codes.shape[1], (3, width))
        codes = np.concatenate(
            [np.take_along_axis(codes, parents[..., None], 1), some_codes(sizes[level:][:1], 3, width)], 2
        )
        got = picked(np.take_along_axis(log_probs[level], parents[..., None], 1), codes[..., level])
        padded = np.concatenate([codes, np.zeros((3, width, 3 - level), np.int64)], 2)
        np.testing.assert_allclose(got, teacher_forced(decoder, z, padded)[..., level], atol=1e-5)
        if level < 3:
            log_probs.append(runtime.step(state, codes[..., -1], parents))


@pytest.mark.parametrize("given", [0, 1, 2, 3])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_open_and_tail_equal_teacher_forcing(shape: dict[str, Any], given: int) -> None:
    decoder, z = tiny(**shape), queries(3)
    codes = some_codes(decoder.config.sizes, 3, 5)
    runtime = decoder.runtime()
    state, log_probs = runtime.open(z, codes[..., :given])
    expected = teacher_forced(decoder, z, codes)
    for level, got in enumerate(log_probs):
        np.testing.assert_allclose(picked(got, codes[..., level]), expected[..., level], atol=1e-5)
    if given:
        rest = runtime.tail(state, codes[..., given:], np.arange(5)[None].repeat(3, 0))
        np.testing.assert_allclose(rest, expected[..., given + 1 :].sum(-1), atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_selected_queries_go_on_alone(shape: dict[str, Any]) -> None:
    decoder = tiny(**shape)
    runtime, codes = decoder.runtime(), some_codes(decoder.config.sizes, 4, 2)
    parents = np.array([[1, 0]]).repeat(4, 0)
    state, _ = runtime.open(queries(4), codes[..., :1])
    chosen = np.array([3, 1])
    alone = runtime.step(state.select(chosen), codes[chosen, :, 1], parents[chosen])
    np.testing.assert_array_equal(alone, runtime.step(state, codes[..., 1], parents)[chosen])


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_query_scores_the_same_alone_and_in_a_batch(shape: dict[str, Any], int8: bool) -> None:
    decoder = tiny(**shape)
    runtime, z, codes = decoder.runtime(int8=int8), queries(9), some_codes(decoder.config.sizes, 9, 1)
    parents = np.zeros((9, 1), np.int64)
    state, together = runtime.open(z, codes[..., :1])
    step = runtime.step(state, codes[..., 1], parents)
    for i in range(9):
        state, alone = runtime.open(z[i : i + 1], codes[i : i + 1, :, :1])
        np.testing.assert_array_equal(alone[1], together[1][i : i + 1])
        np.testing.assert_array_equal(runtime.step(state, codes[i : i + 1, :, 1], parents[:1]), step[i : i + 1])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_weight_shapes_are_those_of_the_torch_module(shape: dict[str, Any]) -> None:
    decoder = tiny(**shape)
    found = {name: tuple(value.shape) for name, value in decoder.state_dict().items()}
    assert decoder.config.weight_shapes() == found


# Eight bits


@pytest.mark.parametrize("changes", [{}, {"residual_input": True, "residual_gain": 1.0}], ids=str)
def test_log_probabilities_in_eight_bits_are_nearly_those_of_32(changes: dict[str, Any]) -> None:
    sizes = (3, 50, 50, 50)
    decoder, z = tiny(sizes, d_model=64, layers=3, heads=4, d_kv=16, d_ff=256, prefix=5, **changes), queries(20)
    codes = some_codes(sizes, 20, 4)
    log_probs, rounded_off = (decoder.runtime(int8=int8).open(z, codes[..., :3])[1] for int8 in (False, True))
    for exact, near in zip(log_probs, rounded_off, strict=True):
        assert 0 < np.abs(near - exact).mean() < 0.05 * exact.std(axis=-1).mean()
