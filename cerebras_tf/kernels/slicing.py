"""Plain kernels of slice, place, pad, concat and reverse: the definitions.

Positions are attributes; gather_scatter.py has reads at computed positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

import numpy as np

from cerebras_tf.kernels.registry import compiled, plain

Dims = tuple[int, ...]
Out = tuple[np.ndarray, ...]


def _window(
    starts: Sequence[int], sizes: Sequence[Optional[int]], strides: Sequence[int]
) -> tuple[slice, ...]:
    window = []
    for start, size, stride in zip(starts, sizes, strides):
        stop = None if size is None else start + size * stride
        window.append(slice(start, stop if stop is None or stop >= 0 else None, stride))
    return tuple(window)


@plain("slice")
def slice_(x, *, starts, sizes, strides):
    """sizes[i] elements from starts[i] with stride strides[i] along axis i; None: up to the end."""
    return np.asarray(x[_window(starts, sizes, strides)], order="C")


@compiled("slice")
def slice_into(x, *, out, starts, sizes, strides):
    """The same into `out`."""
    np.copyto(out[0], x[_window(starts, sizes, strides)])


@plain("place")
def place(x, *, shape, starts, strides):
    """Zeros of `shape` (None: as long as x), with x where slice would read."""
    dims = [x.shape[i] if dim is None else dim for i, dim in enumerate(shape)]
    result = np.zeros(dims, x.dtype)
    result[_window(starts, x.shape, strides)] = x
    return result


@plain("pad")
def pad(x, *, paddings, value):
    """x with paddings[i] = (before, after) elements of `value` around it along axis i."""
    return np.pad(x, paddings, constant_values=x.dtype.type(value))


@plain("concat")
def concat(*xs, axis):
    """The operands concatenated along an axis."""
    return np.concatenate(xs, axis)


@compiled("concat")
def concat_into(*xs, out, axis):
    """The same into `out`."""
    np.concatenate(xs, axis, out=out[0])


@plain("reverse")
def reverse(x, *, axes):
    """x reversed along the axes."""
    return np.asarray(np.flip(x, axes), order="C")
