"""Rounding to bfloat16 within generated kernels; half.py and rounding.py have the definitions.

A bfloat16 is held in a register as the float32 that it is the upper half of.
"""

from __future__ import annotations

import numpy as np

from cerebras_tf.kernels.compiled_intrinsics import bits_of, float_of
from cerebras_tf.kernels.compiled_jit import inlined
from cerebras_tf.kernels.rounding import LAST_SHIFT, MIXING, STRIDE

U32 = np.uint32
SHIFT0, FACTOR0 = U32(MIXING[0][0]), U32(MIXING[0][1])
SHIFT1, FACTOR1 = U32(MIXING[1][0]), U32(MIXING[1][1])
SHIFT2 = U32(LAST_SHIFT)
FACTOR = U32(STRIDE)
UPPER = U32(0xFFFF0000)
QUIET = U32(0x400000)


@inlined
def _mixed(word):
    word = U32(U32(word ^ (word >> SHIFT0)) * FACTOR0)
    word = U32(U32(word ^ (word >> SHIFT1)) * FACTOR1)
    return U32(word ^ (word >> SHIFT2))


@inlined
def rounded_randomly(x, place, key):
    """A float32 rounded to bfloat16 by the word of an element's place; see round_randomly."""
    word = _mixed(U32(U32(U32(place) * FACTOR) + U32(key) + U32(place >> 32)))
    word = _mixed(U32(word ^ U32(key >> 32)))
    bits = U32(U32(bits_of(x)) + U32(word >> U32(16))) & UPPER
    return x if x != x else float_of(np.int32(bits))


@inlined
def nearest_bfloat16(x):
    """A float32 rounded to the nearest bfloat16, ties to even; NaN stays NaN."""
    bits = U32(bits_of(x))
    rounded = U32(bits + U32(0x7FFF) + ((bits >> U32(16)) & U32(1))) & UPPER
    quiet = (bits | QUIET) & UPPER
    return float_of(np.int32(quiet if x != x else rounded))
