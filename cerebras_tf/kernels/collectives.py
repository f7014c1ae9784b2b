"""Plain kernels of the collectives, for one wafer. With several wafers the runtime runs them."""

from __future__ import annotations

import numpy as np

from cerebras_tf.kernels.registry import plain


@plain("wafer_sum")
def wafer_sum(x):
    """x: the sum over one wafer."""
    return x


@plain("wafer_concat")
def wafer_concat(x, *, wafers):
    """`wafers` copies of x, concatenated."""
    return np.concatenate([x] * wafers)


@plain("wafer_pick")
def wafer_pick(*x, roots):
    """Each x: no other wafer has one."""
    return x


@plain("mean_start")
def mean_start(x, *, in_place, root):
    """x: the mean over one wafer."""
    return x


@plain("mean_wait")
def mean_wait(x):
    """x."""
    return x
