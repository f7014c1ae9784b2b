"""Plain kernel of rotary position embedding: the definition."""

from __future__ import annotations

import numpy as np

from cerebras_tf.kernels.registry import plain


@plain("rotary")
def rotary(x, cos, sin, *, transposed):
    """x cos + R(x) sin, or x cos - R(x sin), R(x) = (-x2, x1) (Su et al., 2021, eq. 34, halves).

    Args:
        x: [..., D].
        cos: broadcasts to x.
        sin: broadcasts to x.
        transposed: whether the second form, the derivative of the first, is computed.
    """
    if transposed:
        return x * cos - _turned(x * sin)
    return x * cos + _turned(x) * sin


def _turned(x: np.ndarray) -> np.ndarray:
    first, second = np.split(x, 2, axis=-1)
    return np.concatenate([-second, first], axis=-1)
