"""Arrays on their way from the wafer to TensorFlow."""

from __future__ import annotations

import numpy as np
import tensorflow as tf


def for_tensorflow(array: np.ndarray, dtype: str) -> np.ndarray:
    """An array as TensorFlow takes it; the wafer holds bfloat16 as bits.

    Args:
        array: of the storage dtype of `dtype`.
        dtype: as the IR names it.
    """
    return array.view(tf.bfloat16.as_numpy_dtype) if dtype == "bfloat16" else array
