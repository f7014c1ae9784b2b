"""Plain stochastic rounding: a function of the value, a key and the element's place, no state.

A float32 lies between two bfloat16 whose bits differ by one; it becomes the upper with the chance
that its distance from the lower gives, so that the mean is kept (Gupta et al., Deep Learning with
Limited Numerical Precision, 2015, section 3). Neither threads nor the order of work matter.
"""

from __future__ import annotations

import numpy as np

from cerebras_tf.kernels.registry import plain

# Shifts and multipliers of the 32-bit mixing function "lowbias32" (Wellons, Prospecting for Hash
# Functions, 2018), and the odd number next to 2^32 / golden ratio, which parts neighbouring counts.
MIXING = ((16, 0x7FEB352D), (15, 0x846CA68B))
LAST_SHIFT = 16
STRIDE = 0x9E3779B9


def _mixed(word: np.ndarray) -> np.ndarray:
    for shift, factor in MIXING:
        word = (word ^ (word >> np.uint32(shift))) * np.uint32(factor)
    return np.asarray(word ^ (word >> np.uint32(LAST_SHIFT)))


def random_words(key: int, size: int) -> np.ndarray:
    """A word for every element: uint32 [size].

    Args:
        key: of 64 bits; another one gives other words.
        size: number of elements.
    """
    place = np.arange(size, dtype=np.uint64)
    low, high = place.astype(np.uint32), (place >> np.uint64(32)).astype(np.uint32)
    first, second = np.uint32(key % 2**32), np.uint32((key >> 32) % 2**32)
    with np.errstate(over="ignore"):
        word = _mixed(low * np.uint32(STRIDE) + first + high)
        return _mixed(word ^ second)


@plain("round_randomly")
def round_randomly(x: np.ndarray, key: np.ndarray) -> np.ndarray:
    """x [...] float32 as bfloat16, which is held as float32; NaN stays NaN.

    What bfloat16 holds exactly, infinities too, stays as it is; finite numbers beyond its largest
    may become infinite.
    """
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    added = random_words(int(key), x.size).reshape(x.shape) >> np.uint32(16)
    with np.errstate(over="ignore"):
        upper = (bits + added) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(x), x, np.asarray(upper).view(np.float32))
