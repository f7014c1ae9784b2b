"""Plain kernels of slice, place, pad, concat and reverse: the definitions.

Positions are attributes. Reads at computed positions stand in gather_scatter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

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
def slice_(x: np.ndarray, *, starts: Dims, sizes: Any, strides: Dims) -> np.ndarray:
    """sizes[i] elements from starts[i] in steps of strides[i] along axis i; None: all the rest."""
    return np.asarray(x[_window(starts, sizes, strides)], order="C")


@compiled("slice")
def slice_into(x: np.ndarray, *, out: Out, starts: Dims, sizes: Any, strides: Dims) -> None:
    """The same into `out`."""
    np.copyto(out[0], x[_window(starts, sizes, strides)])


@plain("place")
def place(x: np.ndarray, *, shape: Any, starts: Dims, strides: Dims) -> np.ndarray:
    """Zeros of `shape` (None: as long as x), with x where slice would read."""
    dims = [x.shape[i] if dim is None else dim for i, dim in enumerate(shape)]
    result = np.zeros(dims, x.dtype)
    result[_window(starts, x.shape, strides)] = x
    return result


@plain("pad")
def pad(x: np.ndarray, *, paddings: tuple[tuple[int, int], ...], value: Any) -> np.ndarray:
    """x with paddings[i] = (before, after) elements of `value` around it along axis i."""
    return np.pad(x, paddings, constant_values=x.dtype.type(value))


@plain("concat")
def concat(*xs: np.ndarray, axis: int) -> np.ndarray:
    """The operands one after the other along an axis."""
    return np.concatenate(xs, axis)


@compiled("concat")
def concat_into(*xs: np.ndarray, out: Out, axis: int) -> None:
    """The same into `out`."""
    np.concatenate(xs, axis, out=out[0])


@plain("reverse")
def reverse(x: np.ndarray, *, axes: Dims) -> np.ndarray:
    """x read backwards along the axes."""
    return np.asarray(np.flip(x, axes), order="C")
