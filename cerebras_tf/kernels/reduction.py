"""Plain kernels of the reductions: the definitions.

Sums keep the operand's dtype. NumPy adds pairwise along the last axis; along other axes the sums
here go in blocks, so that errors grow with the square root of the count.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from cerebras_tf.kernels.registry import plain

Axes = tuple[int, ...]
# Axes with shorter blocks are summed directly.
_SHORTEST_BLOCK = 8


@plain("sum")
def sum_(x, *, axes, keepdims):
    """Sum over the axes."""
    total = x
    last = x.ndim - 1
    if last not in axes:
        for axis in axes:
            total = _sum_in_blocks(total, axis)
    return np.asarray(total.sum(axis=tuple(axes), keepdims=keepdims, dtype=x.dtype))


@plain("sum_of_squares")
def sum_of_squares(x):
    """Sum of the squares of all elements, in x's dtype."""
    return sum_(np.square(x), axes=tuple(range(x.ndim)), keepdims=False)


def _sum_in_blocks(x: np.ndarray, axis: int) -> np.ndarray:
    """Replaces a long axis by the sums of its blocks; a remainder stays as it is."""
    count = x.shape[axis]
    block = math.isqrt(count)
    if block < _SHORTEST_BLOCK:
        return x
    before, after, whole = x.shape[:axis], x.shape[axis + 1 :], count - count % block
    head, tail = np.split(x, [whole], axis)
    sums = head.reshape(*before, count // block, block, *after).sum(axis + 1, dtype=x.dtype)
    return np.concatenate([sums, tail], axis) if whole != count else sums


@plain("mean")
def mean(x, *, axes, keepdims):
    """Sum over the axes divided by the count; integers divide towards zero."""
    total = sum_(x, axes=axes, keepdims=keepdims)
    count = math.prod(x.shape[axis] for axis in axes)
    if np.issubdtype(x.dtype, np.integer):
        return np.asarray(np.trunc(total / count), x.dtype)
    return np.asarray(total / x.dtype.type(count))


def _define(name: str, reduce: Callable[..., Any], empty: Any) -> None:
    @plain(name)
    def kernel(x, *, axes, keepdims):
        start = empty(x.dtype)
        return np.asarray(reduce(x, axis=tuple(axes), keepdims=keepdims, initial=start), x.dtype)


def _lowest(dtype: np.dtype) -> Any:
    return -np.inf if dtype.kind == "f" else np.iinfo(dtype).min


def _highest(dtype: np.dtype) -> Any:
    return np.inf if dtype.kind == "f" else np.iinfo(dtype).max


_define("max", np.max, _lowest)
_define("min", np.min, _highest)
_define("prod", np.prod, lambda dtype: 1)


@plain("all")
def all_(x, *, axes, keepdims):
    """Whether every element is true."""
    return np.asarray(x.all(axis=tuple(axes), keepdims=keepdims))


@plain("any")
def any_(x, *, axes, keepdims):
    """Whether an element is true."""
    return np.asarray(x.any(axis=tuple(axes), keepdims=keepdims))


@plain("argmax")
def argmax(x, *, axis, dtype):
    """Position of the first of the largest elements."""
    return np.asarray(x.argmax(axis), dtype)


@plain("argmin")
def argmin(x, *, axis, dtype):
    """Position of the first of the smallest elements."""
    return np.asarray(x.argmin(axis), dtype)


def _running(
    x: np.ndarray, ufunc: Any, first: float, axis: int, exclusive: bool, reverse: bool
) -> np.ndarray:
    source = np.flip(x, axis) if reverse else x
    result = ufunc.accumulate(source, axis=axis, dtype=x.dtype)
    if exclusive:
        shifted = np.full_like(result, first)
        after = [slice(None)] * x.ndim
        before = list(after)
        after[axis], before[axis] = slice(1, None), slice(None, -1)
        shifted[tuple(after)] = result[tuple(before)]
        result = shifted
    return np.asarray(np.flip(result, axis) if reverse else result, order="C")


@plain("cumsum")
def cumsum(x, *, axis, exclusive, reverse):
    """Sums of all elements up to each (exclusive: before it), from the end where reverse."""
    return _running(x, np.add, 0, axis, exclusive, reverse)


@plain("cumulative_logsumexp")
def cumulative_logsumexp(x, *, axis, exclusive, reverse):
    """log of running sums of exp(x)."""
    return _running(x, np.logaddexp, -np.inf, axis, exclusive, reverse)


@plain("cumprod")
def cumprod(x, *, axis, exclusive, reverse):
    """Products of all elements up to each (exclusive: before it), from the end where reverse."""
    return _running(x, np.multiply, 1, axis, exclusive, reverse)
