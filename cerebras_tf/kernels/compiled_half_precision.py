"""Compiled conversions between bfloat16 bits and float32; half.py has the definitions."""

from __future__ import annotations

import numpy as np

from cerebras_tf.kernels.compiled_intrinsics import bits_of, float_of
from cerebras_tf.kernels.compiled_jit import jit
from cerebras_tf.kernels.compiled_layout import ordinary
from cerebras_tf.kernels.compiled_threads import for_rows


@jit()
def _widen(start, stop, bits, out):
    part, result = bits[start:stop], out[start:stop]
    for i in range(part.size):
        result[i] = float_of(np.int32(np.uint32(part[i]) << np.uint32(16)))


@jit()
def _narrow(start, stop, array, out):
    part, result = array[start:stop], out[start:stop]
    for i in range(part.size):
        bits = np.uint32(bits_of(part[i]))
        upper = bits >> np.uint32(16)
        rounded = np.uint32(bits + np.uint32(0x7FFF) + (upper & np.uint32(1))) >> np.uint32(16)
        quiet = upper | np.uint32(0x40)
        result[i] = np.uint16(quiet if part[i] != part[i] else rounded)


def to_float32(bits: np.ndarray, out: np.ndarray) -> None:
    """Writes the float32 numbers of bfloat16 bits.

    Args:
        bits: uint16 of any shape.
        out: float32 of that shape, C-contiguous, other memory.
    """
    flat = ordinary(bits).reshape(-1)
    for_rows(_widen, flat.size, flat.size, flat, out.reshape(-1))


def to_bfloat16(array: np.ndarray, out: np.ndarray) -> None:
    """Writes the bfloat16 bits of float32 numbers, rounded to nearest, ties to even.

    Args:
        array: float32 of any shape.
        out: uint16 of that shape, C-contiguous, other memory.
    """
    flat = ordinary(array).reshape(-1)
    for_rows(_narrow, flat.size, flat.size, flat, out.reshape(-1))
