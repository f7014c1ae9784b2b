"""How fast the host is: two quick measurements, made once a process, to predict time by."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

import numpy as np

from cerebras_tf.kernels import compiled_bfloat16
from cerebras_tf.kernels.blas import gemm
from cerebras_tf.kernels.compiled_threads import num_threads, parallel_tasks
from cerebras_tf.ops.cost import Speeds

SIDE = 512  # large enough for nearly full speed
_BYTES = 1 << 25  # copied: more than caches hold
_ROUNDS = 3


def measured_speeds(side: int = SIDE, rounded: bool = False) -> Speeds:
    """Operations of a product and bytes of a copy, a second, on all of kernels' threads.

    Args:
        side: of the product's square matrices.
        rounded: whether the product is one in bfloat16, otherwise in float32.
    """
    return _measured(side, rounded, num_threads())


@functools.cache
def _measured(side: int, rounded: bool, count: int) -> Speeds:
    multiply = compiled_bfloat16.gemm if rounded else gemm
    a = np.ones((side, side), np.float32)
    out = np.empty_like(a)
    source = np.ones(_BYTES, np.uint8)  # zeros would all be one page
    target = np.ones_like(source)
    part = _BYTES // count

    def copy(i: int) -> None:
        np.copyto(target[i * part : (i + 1) * part], source[i * part : (i + 1) * part])

    return Speeds(
        flops_per_s=2 * side**3 / _least_seconds(lambda: multiply(a, a, out)),
        bytes_per_s=2 * _BYTES / _least_seconds(lambda: parallel_tasks(copy, count, _BYTES)),
    )


def _least_seconds(work: Callable[[], None]) -> float:
    found = []
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        work()
        found.append(time.perf_counter() - start)
    return max(min(found), 1e-9)
