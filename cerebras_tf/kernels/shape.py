"""Plain kernels of the shape ops: the definitions.

Every result but a reshape is a C-contiguous array. Nothing here depends on values other than shapes
and attributes, except range, one_hot and the dynamic forms.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cerebras_tf.kernels.registry import compiled, plain

Dims = tuple[int, ...]
Out = tuple[np.ndarray, ...]


def numpy_dtype(name: str) -> np.dtype:
    """The NumPy dtype of an IR dtype name; bfloat16 is held as float32."""
    return np.dtype("float32" if name == "bfloat16" else name)


@plain("constant")
def constant(*, value: np.ndarray, dtype: str) -> np.ndarray:
    """The value."""
    return np.asarray(value, numpy_dtype(dtype))


@plain("reshape")
def reshape(x: np.ndarray, *, shape: Dims) -> np.ndarray:
    """x under another shape."""
    return x.reshape(shape)


@plain("reshape_dynamic")
def reshape_dynamic(x: np.ndarray, target: np.ndarray, *, shape: Any) -> np.ndarray:
    """x under the shape that `target` holds."""
    return x.reshape(tuple(target))


@plain("transpose")
def transpose(x: np.ndarray, *, permutation: Dims) -> np.ndarray:
    """Axis i of the result is axis permutation[i] of x."""
    return np.asarray(x.transpose(permutation), order="C")


@compiled("transpose")
def transpose_into(x: np.ndarray, *, out: Out, permutation: Dims) -> None:
    """The same into `out`."""
    np.copyto(out[0], x.transpose(permutation))


@plain("broadcast_to")
def broadcast_to(x: np.ndarray, *, shape: Dims) -> np.ndarray:
    """Copies of x."""
    return np.array(np.broadcast_to(x, shape), order="C")


@compiled("broadcast_to")
def broadcast_into(x: np.ndarray, *, out: Out, shape: Dims) -> None:
    """The same into `out`."""
    np.copyto(out[0], x)


@plain("broadcast_dynamic")
def broadcast_dynamic(x: np.ndarray, target: np.ndarray, *, shape: Any) -> np.ndarray:
    """Copies of x, as many as the shape that `target` holds asks for."""
    return np.array(np.broadcast_to(x, tuple(target)), order="C")


@plain("sum_to_like")
def sum_to_like(x: np.ndarray, like: np.ndarray) -> np.ndarray:
    """x summed over the axes along which `like` was broadcast."""
    padded = (1,) * (x.ndim - like.ndim) + like.shape
    axes = tuple(i for i, (a, c) in enumerate(zip(x.shape, padded)) if c == 1 and a != 1)
    return x.sum(axis=axes, dtype=x.dtype).reshape(like.shape)


@plain("tile")
def tile(x: np.ndarray, *, multiples: Dims) -> np.ndarray:
    """multiples[i] copies of x along axis i."""
    return np.tile(x, multiples)


@plain("shape_of")
def shape_of(x: np.ndarray, *, dtype: str) -> np.ndarray:
    """The shape of x as a vector."""
    return np.array(x.shape, dtype)


@plain("range")
def range_(start: np.ndarray, limit: np.ndarray, delta: np.ndarray) -> np.ndarray:
    """start, start + delta, ... before limit."""
    return np.arange(start, limit, delta, dtype=start.dtype)


@plain("one_hot")
def one_hot(
    indices: np.ndarray, *, depth: int, axis: int, on_value: Any, off_value: Any, dtype: str
) -> np.ndarray:
    """on_value at each index, off_value elsewhere; indices outside [0, depth) match nothing."""
    hit = np.expand_dims(indices, axis) == _along(axis, indices.ndim + 1, depth)
    kind = numpy_dtype(dtype)
    return np.where(hit, kind.type(on_value), kind.type(off_value))


def _along(axis: int, rank: int, count: int) -> np.ndarray:
    dims = [1] * rank
    dims[axis] = count
    return np.arange(count).reshape(dims)


@plain("band_part")
def band_part(x: np.ndarray, *, lower: int, upper: int) -> np.ndarray:
    """x where -upper <= row - column <= lower, else 0; a negative bound is no bound."""
    rows, columns = x.shape[-2:]
    below = np.arange(rows)[:, None] - np.arange(columns)
    keep = np.ones(below.shape, bool)
    if lower >= 0:
        keep &= below <= lower
    if upper >= 0:
        keep &= -below <= upper
    return np.where(keep, x, x.dtype.type(0))


@plain("diag_part")
def diag_part(x: np.ndarray) -> np.ndarray:
    """Main diagonals of the matrices in the last two axes."""
    return np.array(np.diagonal(x, axis1=-2, axis2=-1), order="C")
