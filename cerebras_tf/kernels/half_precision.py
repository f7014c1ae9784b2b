"""Conversions between float32 and bfloat16, which rests as the upper 16 bits of one in a uint16.

NumPy has no bfloat16. These are the definitions; compiled_half.py has the fast forms.
"""

from __future__ import annotations

import numpy as np

# Half of the last bit that is kept, less one: ties go to the even neighbour.
_BELOW_HALF = np.uint32(0x7FFF)
_QUIET = np.uint32(0x40)  # keeps a NaN one whose other bits are cut off


def to_float32(bits: np.ndarray) -> np.ndarray:
    """The float32 numbers of bfloat16 bits.

    Args:
        bits: uint16 of any shape.

    Returns:
        float32 of the same shape; exact.
    """
    return np.asarray(np.left_shift(bits, 16, dtype=np.uint32)).view(np.float32)


def to_bfloat16(array: np.ndarray) -> np.ndarray:
    """The bfloat16 bits of float32 numbers, rounded to nearest, ties to even.

    Args:
        array: float32 of any shape.

    Returns:
        uint16 of the same shape. NaN stays NaN; what rounds beyond the largest bfloat16 is Inf.
    """
    bits = np.asarray(array, np.float32).view(np.uint32)
    upper = bits >> np.uint32(16)
    with np.errstate(over="ignore"):  # NaNs, whose sum is not taken
        rounded = (bits + _BELOW_HALF + (upper & np.uint32(1))) >> np.uint32(16)
    return np.asarray(np.where(np.isnan(array), upper | _QUIET, rounded), np.uint16)


def in_float32(array: np.ndarray, dtype: str) -> np.ndarray:
    """An array at rest of any dtype, as float32 where it is of half precision."""
    if dtype == "bfloat16":
        return to_float32(array)
    return array.astype(np.float32) if dtype == "float16" else array


def from_float32(array: np.ndarray, dtype: str) -> np.ndarray:
    """The inverse, rounded to nearest even; what is too large for float16 becomes Inf."""
    if dtype == "bfloat16":
        return to_bfloat16(array)
    with np.errstate(over="ignore"):
        return array.astype(np.float16) if dtype == "float16" else array


def as_read(array: np.ndarray) -> np.ndarray:
    """float32 numbers as instructions for bfloat16 products read them.

    Args:
        array: float32 of any shape.

    Returns:
        float32 of the same shape: rounded to bfloat16, subnormal ones zero with their sign.
    """
    return to_float32(to_bfloat16(flushed(array)))


def flushed(array: np.ndarray) -> np.ndarray:
    """float32 numbers, of any shape, with zeros of their sign for subnormal ones."""
    tiny = np.abs(array) < np.finfo(np.float32).tiny
    return np.where(tiny, np.copysign(np.float32(0), array), array)


def at_rest(content: np.ndarray, dtype: str) -> np.ndarray:
    """An array in the form that memory holds.

    Args:
        content: [...] of any dtype NumPy converts to `dtype`; of bfloat16 its bits (uint16), an
            array of a package's own bfloat16, or numbers to be rounded.
        dtype: as the IR names it.

    Returns:
        [...] of `dtype`, of bfloat16 the bits as uint16; the same array where it fits.
    """
    content = np.asarray(content)
    if dtype != "bfloat16":
        return content if content.dtype == dtype else content.astype(dtype)
    if content.dtype.name == "bfloat16":
        return content.view(np.uint16)
    return content if content.dtype == np.uint16 else to_bfloat16(content)
