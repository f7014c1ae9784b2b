"""Conversions between float32 and bfloat16, by round-to-nearest and stochastic rounding.

NumPy has no bfloat16; it is stored as its bits in uint16, the upper half of a float32. These are
the definitions; compiled_half_precision.py has the compiled forms.
"""

from __future__ import annotations

import numpy as np

from cerebras_tf.kernels.registry import plain

# Half of the last kept bit, less one: ties go to even.
_BELOW_HALF = np.uint32(0x7FFF)
_QUIET = np.uint32(0x40)  # keeps a NaN a NaN if its other bits are cut off


def to_float32(bits: np.ndarray) -> np.ndarray:
    """bfloat16 bits, uint16 of any shape, as float32; exact."""
    return np.asarray(np.left_shift(bits, 16, dtype=np.uint32)).view(np.float32)


def to_bfloat16(array: np.ndarray) -> np.ndarray:
    """float32 of any shape as bfloat16 bits, uint16, rounded to nearest, ties to even.

    NaN stays NaN; numbers that round beyond the largest bfloat16 become infinite.
    """
    bits = np.asarray(array, np.float32).view(np.uint32)
    upper = bits >> np.uint32(16)
    with np.errstate(over="ignore"):  # NaNs, whose sum is not taken
        rounded = (bits + _BELOW_HALF + (upper & np.uint32(1))) >> np.uint32(16)
    return np.asarray(np.where(np.isnan(array), upper | _QUIET, rounded), np.uint16)


def as_float32(array: np.ndarray, dtype: str) -> np.ndarray:
    """An array stored in `dtype`; half precision becomes float32."""
    if dtype == "bfloat16":
        return to_float32(array)
    return array.astype(np.float32) if dtype == "float16" else array


def from_float32(array: np.ndarray, dtype: str) -> np.ndarray:
    """The inverse, rounded to nearest even; numbers too large for float16 become infinite."""
    if dtype == "bfloat16":
        return to_bfloat16(array)
    with np.errstate(over="ignore"):
        return array.astype(np.float16) if dtype == "float16" else array


def as_bfloat16_operand(array: np.ndarray) -> np.ndarray:
    """float32 of any shape as bfloat16 instructions read it: rounded, subnormal numbers flushed to
    zero."""
    return to_float32(to_bfloat16(flush_subnormals(array)))


def flush_subnormals(array: np.ndarray) -> np.ndarray:
    """float32 of any shape with zeros of their sign for subnormal numbers."""
    tiny = np.abs(array) < np.finfo(np.float32).tiny
    return np.where(tiny, np.copysign(np.float32(0), array), array)


def to_storage(content: np.ndarray, dtype: str) -> np.ndarray:
    """An array in the form in which memory holds `dtype`.

    Args:
        content: [...] of any dtype that NumPy converts to `dtype`. For bfloat16: its bits (uint16),
            an array of another package's bfloat16, or numbers, which are rounded.
        dtype: an IR dtype.

    Returns:
        [...] of `dtype`, uint16 for bfloat16; `content` itself if it has that form.
    """
    content = np.asarray(content)
    if dtype != "bfloat16":
        return content if content.dtype == dtype else content.astype(dtype)
    if content.dtype.name == "bfloat16":
        return content.view(np.uint16)
    return content if content.dtype == np.uint16 else to_bfloat16(content)


# Shifts and multipliers of the mixing function "lowbias32" (Wellons, Prospecting for Hash
# Functions, 2018), and the odd number next to 2^32 / golden ratio, which separates neighbouring
# indices.
MIX_STEPS = ((16, 0x7FEB352D), (15, 0x846CA68B))
LAST_SHIFT = 16
GOLDEN_RATIO = 0x9E3779B9


def _mix(word: np.ndarray) -> np.ndarray:
    for shift, factor in MIX_STEPS:
        word = (word ^ (word >> np.uint32(shift))) * np.uint32(factor)
    return np.asarray(word ^ (word >> np.uint32(LAST_SHIFT)))


def random_words(key: int, size: int) -> np.ndarray:
    """A word for every element: uint32 [size], a function of the 64-bit key and the element's
    index."""
    place = np.arange(size, dtype=np.uint64)
    low, high = place.astype(np.uint32), (place >> np.uint64(32)).astype(np.uint32)
    first, second = np.uint32(key % 2**32), np.uint32((key >> 32) % 2**32)
    with np.errstate(over="ignore"):
        word = _mix(low * np.uint32(GOLDEN_RATIO) + first + high)
        return _mix(word ^ second)


@plain("round_randomly")
def round_randomly(x, key):
    """x [...] float32 rounded stochastically to bfloat16, held as float32; NaN stays NaN.

    A float32 between two bfloat16 becomes the upper one with a probability proportional to its
    distance from the lower one, so that the expected value is kept (Gupta et al., Deep Learning
    with Limited Numerical Precision, 2015, section 3). The random word depends on the key and the
    element's index only, not on threads. Exact bfloat16 values, infinities too, stay; numbers
    beyond the largest bfloat16 may become infinite.
    """
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    added = random_words(int(key), x.size).reshape(x.shape) >> np.uint32(16)
    with np.errstate(over="ignore"):
        upper = (bits + added) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(x), x, np.asarray(upper).view(np.float32))
