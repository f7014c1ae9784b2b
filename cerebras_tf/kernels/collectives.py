"""Plain kernels of the ops between wafers, as they are where there is one.

With several, runtime/exchange.py runs them: kernels know no other process.
"""

from __future__ import annotations

import numpy as np

from cerebras_tf.kernels.registry import plain


@plain("wafer_sum")
def wafer_sum(x: np.ndarray) -> np.ndarray:
    """x: the sum over one wafer."""
    return x


@plain("wafer_concat")
def wafer_concat(x: np.ndarray, *, wafers: int) -> np.ndarray:
    """x as often as there are wafers, as if all had the same."""
    return np.concatenate([x] * wafers)


@plain("wafer_pick")
def wafer_pick(*x: np.ndarray, roots: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    """Each x: there is no other wafer's."""
    return x


@plain("mean_start")
def mean_start(x: np.ndarray, *, in_place: bool, root: int) -> np.ndarray:
    """x: the mean over one wafer."""
    return x


@plain("mean_wait")
def mean_wait(x: np.ndarray) -> np.ndarray:
    """x."""
    return x
