"""Plain kernels of the pooling ops, NHWC: the definitions.

Each loops over the positions within a window and handles all windows at once.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from cerebras_tf.kernels.convolution import Padding, Pair, counts_of, pad_image, sides, taps
from cerebras_tf.kernels.registry import plain

_ONES = (1, 1)


def _lowest(dtype: np.dtype) -> float:
    return -np.inf if dtype.kind == "f" else int(np.iinfo(dtype).min)


def _views(image: np.ndarray, window: Pair, counts: Pair, strides: Pair) -> Iterator[np.ndarray]:
    for _, _, view in taps(image, window, counts, strides, _ONES):
        yield view


@plain("max_pool")
def max_pool(x, *, window, strides, padding):
    """Largest element of every window."""
    counts = counts_of(x.shape[1:3], window, strides, padding, _ONES)
    image = pad_image(x, padding, _lowest(x.dtype))
    result = np.full((x.shape[0], *counts, x.shape[3]), _lowest(x.dtype), x.dtype)
    for view in _views(image, window, counts, strides):
        np.maximum(result, view, out=result)
    return result


def _first_hits(
    x: np.ndarray, y: np.ndarray, window: Pair, strides: Pair, padding: Padding
) -> Iterator[np.ndarray]:
    """For every position within a window: which windows have their first largest element there."""
    image = pad_image(x, padding, _lowest(x.dtype))
    free = np.ones(y.shape, bool)
    for view in _views(image, window, sides(y), strides):
        hit = free & (view == y)
        free &= ~hit
        yield hit


@plain("max_pool_grad")
def max_pool_grad(x, y, dy, *, window, strides, padding):
    """dy added to the first largest element of each window."""
    image = pad_image(np.zeros_like(x), padding)
    views = _views(image, window, sides(y), strides)
    for view, hit in zip(views, _first_hits(x, y, window, strides, padding)):
        view += np.where(hit, dy, dy.dtype.type(0))
    (top, _), (left, _) = padding
    return np.asarray(image[:, top : top + x.shape[1], left : left + x.shape[2]], order="C")


@plain("max_pool_select")
def max_pool_select(x, y, z, *, window, strides, padding):
    """The elements of z at the positions of x's first largest elements of each window."""
    result = np.zeros(y.shape, z.dtype)
    views = _views(pad_image(z, padding), window, sides(y), strides)
    for view, hit in zip(views, _first_hits(x, y, window, strides, padding)):
        np.copyto(result, view, where=hit)
    return result


def _shares(
    size: Pair, dtype: np.dtype, window: Pair, strides: Pair, padding: Padding
) -> np.ndarray:
    """[1,H',W',1]: number of elements of every window that are not padding."""
    counts = counts_of(size, window, strides, padding, _ONES)
    image = pad_image(np.ones((1, *size, 1), dtype), padding)
    total = np.zeros((1, *counts, 1), dtype)
    for view in _views(image, window, counts, strides):
        total += view
    return total


@plain("avg_pool")
def avg_pool(x, *, window, strides, padding):
    """Mean of every window without its padding."""
    counts = counts_of(x.shape[1:3], window, strides, padding, _ONES)
    total = np.zeros((x.shape[0], *counts, x.shape[3]), x.dtype)
    for view in _views(pad_image(x, padding), window, counts, strides):
        total += view
    return total / _shares(sides(x), x.dtype, window, strides, padding)


@plain("avg_pool_grad")
def avg_pool_grad(dy, *, size, window, strides, padding):
    """dy divided equally among the elements of each window."""
    part = dy / _shares(size, dy.dtype, window, strides, padding)
    image = pad_image(np.zeros((dy.shape[0], *size, dy.shape[3]), dy.dtype), padding)
    for view in _views(image, window, sides(dy), strides):
        view += part
    (top, _), (left, _) = padding
    return np.asarray(image[:, top : top + size[0], left : left + size[1]], order="C")
