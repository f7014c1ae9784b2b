"""bfloat16, which NumPy does not have: bits at rest, float32 in arithmetic."""

from __future__ import annotations

import numpy as np


def to_float32(bits: np.ndarray) -> np.ndarray:
    """Numbers of bfloat16 bits: uint16 [...] -> float32 [...]."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def to_bfloat16(x: np.ndarray) -> np.ndarray:
    """Bits of numbers rounded to nearest even: float32 [...] -> uint16 [...]; NaN stays NaN."""
    numbers = np.asarray(x, np.float32)
    bits = numbers.view(np.uint32)
    even = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = (bits + np.uint32(0x7FFF) + even) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where(np.isnan(numbers), quiet, rounded).astype(np.uint16)


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
