"""Plain kernels of tensors made of sizes alone: the definitions."""

from __future__ import annotations

from typing import Any

import numpy as np

from cerebras_tf.kernels.registry import plain
from cerebras_tf.kernels.shape import numpy_dtype


@plain("sizes")
def sizes(*, dims: Any, dtype: str) -> np.ndarray:
    """The sizes as an array."""
    return np.array(dims, numpy_dtype(dtype))


@plain("iota")
def iota(*, size: int, start: int, step: int, dtype: str) -> np.ndarray:
    """start, start + step, ..., `size` numbers."""
    return np.asarray(start + step * np.arange(size), numpy_dtype(dtype))
