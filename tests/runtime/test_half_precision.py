"""Half-precision numbers in compiled loops, against numpy's."""

from typing import Any

import numpy as np
import pytest
from numba import njit, types
from numba.extending import intrinsic

from genius.runtime import half_precision as halves

BITS = np.arange(-(2**15), 2**15).astype(np.int16)
FINITE = np.isfinite(BITS.view(np.float16))


@pytest.mark.parametrize("way", [halves.widened, halves.moved])
def test_every_finite_number_is_the_same_in_single_precision(way: Any) -> None:
    @intrinsic
    def converted(_, bits):  # type: ignore[no-untyped-def]
        return types.float32(types.int16), lambda _, builder, __, args: way(builder, args[0])

    @njit
    def all_of(bits):  # type: ignore[no-untyped-def]
        numbers = np.empty(len(bits), np.float32)
        for i in range(len(bits)):
            numbers[i] = converted(bits[i])
        return numbers

    expected = BITS[FINITE].view(np.float16).astype(np.float32)
    np.testing.assert_array_equal(all_of(BITS[FINITE]).view(np.int32), expected.view(np.int32))
