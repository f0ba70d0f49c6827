"""Half-precision numbers in compiled loops, which know them only by their bits.

Knows nothing of what the numbers are.
"""

import platform
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

NATIVE = platform.machine() in ("aarch64", "arm64") or llvm.get_host_cpu_features().get("f16c", False)


@intrinsic
def single(_: Any, bits: Any) -> Any:
    """A half-precision number's bits, int16 -> the number as float32. Not for infinities where the processor cannot."""
    return types.float32(types.int16), lambda _, builder, __, args: (native if NATIVE else moved)(builder, args[0])


def native(builder: ir.IRBuilder, bits: ir.Value) -> ir.Value:
    return builder.fpext(builder.bitcast(bits, ir.HalfType()), ir.FloatType())


def moved(builder: ir.IRBuilder, bits: ir.Value) -> ir.Value:
    """The bits, moved to their places in single precision, are the number divided by 2^112; of small numbers too.

    The sign is carried along by the extension to 32 bits.
    """
    word = ir.IntType(32)
    places = builder.and_(builder.shl(builder.sext(bits, word), word(13)), word(-0x70002000))
    return builder.fmul(builder.bitcast(places, ir.FloatType()), ir.FloatType()(2.0**112))
