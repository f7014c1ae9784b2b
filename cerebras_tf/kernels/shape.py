"""Plain kernels of the shape ops, and of tensors made of sizes: the definitions.

Every result but a reshape is a C-contiguous array.
"""

from __future__ import annotations

import numpy as np

from cerebras_tf.kernels.registry import compiled, plain

Dims = tuple[int, ...]
Out = tuple[np.ndarray, ...]


def numpy_dtype(name: str) -> np.dtype:
    """The NumPy dtype of an IR dtype; bfloat16 is held as float32."""
    return np.dtype("float32" if name == "bfloat16" else name)


@plain("constant")
def constant(*, value, dtype):
    """The value."""
    return np.asarray(value, numpy_dtype(dtype))


@plain("reshape")
def reshape(x, *, shape):
    """x under another shape."""
    return x.reshape(shape)


@plain("reshape_dynamic")
def reshape_dynamic(x, target, *, shape):
    """x under the shape that `target` holds."""
    return x.reshape(tuple(target))


@plain("transpose")
def transpose(x, *, permutation):
    """Axis i of the result is axis permutation[i] of x."""
    return np.asarray(x.transpose(permutation), order="C")


@compiled("transpose")
def transpose_into(x, *, out, permutation):
    """The same into `out`."""
    np.copyto(out[0], x.transpose(permutation))


@plain("broadcast_to")
def broadcast_to(x, *, shape):
    """Copies of x."""
    return np.array(np.broadcast_to(x, shape), order="C")


@compiled("broadcast_to")
def broadcast_into(x, *, out, shape):
    """The same into `out`."""
    np.copyto(out[0], x)


@plain("broadcast_dynamic")
def broadcast_dynamic(x, target, *, shape):
    """Copies of x for the shape that `target` holds."""
    return np.array(np.broadcast_to(x, tuple(target)), order="C")


@plain("sum_to_like")
def sum_to_like(x, like):
    """x summed over the axes along which `like` was broadcast."""
    padded = (1,) * (x.ndim - like.ndim) + like.shape
    axes = tuple(i for i, (a, c) in enumerate(zip(x.shape, padded)) if c == 1 and a != 1)
    return x.sum(axis=axes, dtype=x.dtype).reshape(like.shape)


@plain("tile")
def tile(x, *, multiples):
    """multiples[i] copies of x along axis i."""
    return np.tile(x, multiples)


@plain("shape_of")
def shape_of(x, *, dtype):
    """The shape of x as a vector."""
    return np.array(x.shape, dtype)


@plain("range")
def range_(start, limit, delta):
    """start, start + delta, ... before limit."""
    return np.arange(start, limit, delta, dtype=start.dtype)


@plain("one_hot")
def one_hot(indices, *, depth, axis, on_value, off_value, dtype):
    """on_value at each index, off_value elsewhere; indices outside [0, depth) match nothing."""
    hit = np.expand_dims(indices, axis) == _along(axis, indices.ndim + 1, depth)
    kind = numpy_dtype(dtype)
    return np.where(hit, kind.type(on_value), kind.type(off_value))


def _along(axis: int, rank: int, count: int) -> np.ndarray:
    dims = [1] * rank
    dims[axis] = count
    return np.arange(count).reshape(dims)


@plain("band_part")
def band_part(x, *, lower, upper):
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
def diag_part(x):
    """Main diagonals of the matrices in the last two axes."""
    return np.array(np.diagonal(x, axis1=-2, axis2=-1), order="C")


@plain("sizes")
def sizes(*, dims, dtype):
    """The sizes as an array."""
    return np.array(dims, numpy_dtype(dtype))


@plain("iota")
def iota(*, size, start, step, dtype):
    """start, start + step, ..., `size` numbers."""
    return np.asarray(start + step * np.arange(size), numpy_dtype(dtype))


@plain("bitcast")
def bitcast(x, *, dtype):
    """The same bits as another dtype."""
    wanted = np.dtype(dtype)
    if x.dtype.itemsize == wanted.itemsize:
        return np.ascontiguousarray(x).view(wanted).reshape(x.shape)
    if x.dtype.itemsize > wanted.itemsize:
        return np.ascontiguousarray(x)[..., None].view(wanted)
    return np.ascontiguousarray(x).view(wanted)[..., 0]
