"""Compiled conversions between float32 and bfloat16; half_precision.py has the definitions.

In a register a bfloat16 is held as the float32 that it is the upper half of.
"""

from __future__ import annotations

import numpy as np

from cerebras_tf.kernels.compiled_intrinsics import bits_of, float_of
from cerebras_tf.kernels.compiled_jit import inlined, jit
from cerebras_tf.kernels.compiled_layout import as_contiguous
from cerebras_tf.kernels.compiled_threads import parallel_for
from cerebras_tf.kernels.half_precision import GOLDEN_RATIO, LAST_SHIFT, MIX_STEPS


@jit()
def _widen(start, stop, bits, out):
    part, result = bits[start:stop], out[start:stop]
    for i in range(part.size):
        result[i] = float_of(np.int32(np.uint32(part[i]) << np.uint32(16)))


U32 = np.uint32
UPPER = U32(0xFFFF0000)
QUIET = U32(0x400000)


@inlined
def _rounded_bits(x):
    """Bits of a float32 whose upper half is the nearest bfloat16; one shift after the choice takes
    half the time of one in each branch."""
    bits = U32(bits_of(x))
    rounded = U32(bits + U32(0x7FFF) + ((bits >> U32(16)) & U32(1)))
    return U32(bits | QUIET) if x != x else rounded


@inlined
def bfloat16_bits(x):
    """A float32 as bits of the nearest bfloat16, ties to even; NaN stays NaN."""
    return np.uint16(_rounded_bits(x) >> U32(16))


@jit()
def _narrow(start, stop, array, out):
    part, result = array[start:stop], out[start:stop]
    for i in range(part.size):
        result[i] = bfloat16_bits(part[i])


def to_float32(bits: np.ndarray, out: np.ndarray) -> None:
    """Writes bfloat16 bits (uint16 of any shape) as float32 into C-contiguous `out`."""
    flat = as_contiguous(bits).reshape(-1)
    parallel_for(_widen, flat.size, flat.size, flat, out.reshape(-1))


def to_bfloat16(array: np.ndarray, out: np.ndarray) -> None:
    """Writes float32 of any shape, rounded to nearest even, as bfloat16 bits into C-contiguous
    `out`."""
    flat = as_contiguous(array).reshape(-1)
    parallel_for(_narrow, flat.size, flat.size, flat, out.reshape(-1))


SHIFT0, FACTOR0 = U32(MIX_STEPS[0][0]), U32(MIX_STEPS[0][1])
SHIFT1, FACTOR1 = U32(MIX_STEPS[1][0]), U32(MIX_STEPS[1][1])
SHIFT2 = U32(LAST_SHIFT)
FACTOR = U32(GOLDEN_RATIO)


@inlined
def _mix(word):
    word = U32(U32(word ^ (word >> SHIFT0)) * FACTOR0)
    word = U32(U32(word ^ (word >> SHIFT1)) * FACTOR1)
    return U32(word ^ (word >> SHIFT2))


@inlined
def round_stochastically(x, place, key):
    """A float32 rounded to bfloat16 by its index's random word; see round_randomly."""
    word = _mix(U32(U32(U32(place) * FACTOR) + U32(key) + U32(place >> 32)))
    word = _mix(U32(word ^ U32(key >> 32)))
    bits = U32(U32(bits_of(x)) + U32(word >> U32(16))) & UPPER
    return x if x != x else float_of(np.int32(bits))


@inlined
def round_to_bfloat16(x):
    """A float32 rounded to the nearest bfloat16, ties to even; NaN stays NaN."""
    return float_of(np.int32(_rounded_bits(x) & UPPER))
