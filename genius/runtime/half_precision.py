"""Half-precision numbers in compiled loops, which know them only by their bits.

Knows nothing of what the numbers are.
"""

import platform
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.core import config
from numba.extending import intrinsic

ARM = platform.machine().lower() in ("aarch64", "arm64")
NATIVE = ARM or (llvm.get_host_cpu_features().get("f16c", False) and getattr(config, "CPU_FEATURES", None) is None)
"""Whether the processor, as far as compiled loops may use it, knows half-precision numbers."""


@intrinsic
def _single(_, bits):  # type: ignore[no-untyped-def]
    return types.float32(types.int16), lambda _, builder, __, args: widened(builder, args[0])


single: Any = _single
"""The bits of a half-precision number, int16 -> the number as float32. Of finite numbers only."""


def widened(builder: Any, bits: Any) -> Any:
    """Writes what `single` does, for one number or a vector of them."""
    return native(builder, bits) if NATIVE else moved(builder, bits)


def native(builder: Any, bits: Any) -> Any:
    return builder.fpext(builder.bitcast(bits, like(bits, ir.HalfType())), like(bits, ir.FloatType()))


def moved(builder: Any, bits: Any) -> Any:
    """The bits, moved to their places in single precision, are the number divided by 2^112; of small numbers too.

    The sign is carried along by the extension to 32 bits.
    """
    word, number = like(bits, ir.IntType(32)), like(bits, ir.FloatType())
    places = builder.shl(builder.sext(bits, word), filled(word, 13))
    places = builder.and_(places, filled(word, -0x70002000))
    return builder.fmul(builder.bitcast(places, number), filled(number, 2.0**112))


def like(value: Any, element: Any) -> Any:
    """The type of as many elements as the value has."""
    return ir.VectorType(element, value.type.count) if isinstance(value.type, ir.VectorType) else element


def filled(kind: Any, value: float) -> Any:
    """A constant; in a vector, of all elements."""
    return ir.Constant(kind, [value] * kind.count if isinstance(kind, ir.VectorType) else value)
