"""How fast this machine computes: the measure that estimates of a step's seconds rest on."""

from __future__ import annotations

import time

import numpy as np

from cerebras_tf.kernels import blas

_SIDE = 2048
_ROUNDS = 3


def product_flops_per_s(side: int = _SIDE) -> float:
    """Speed of a product of square float32 matrices, the best of a few: 2 side^3 operations."""
    matrix = np.ones((side, side), np.float32)
    result = np.empty_like(matrix)
    seconds = []
    for _ in range(_ROUNDS):
        started = time.perf_counter()
        blas.product(matrix, matrix, result)
        seconds.append(time.perf_counter() - started)
    return 2.0 * side**3 / min(seconds)
