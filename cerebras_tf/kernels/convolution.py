"""Plain kernels of the convolutions, NHWC: the definitions.

A convolution is one matrix product with the image's patches (im2col); a depthwise one loops over
the filter's taps, on shifted views.

Letters: N images, H W their size, C channels in, K channels out, R S filter size, M filters a
channel.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from cerebras_tf.kernels.registry import plain

Pair = tuple[int, int]
Padding = tuple[Pair, Pair]


def sides(x: np.ndarray, first: int = 1) -> Pair:
    """Height and width: axes 1 and 2 of an image, 0 and 1 of a filter."""
    return x.shape[first], x.shape[first + 1]


def pad_image(x: np.ndarray, padding: Padding, value: Any = 0) -> np.ndarray:
    """x [N,H,W,C] with a border of `value`; x itself without padding."""
    if padding == ((0, 0), (0, 0)):
        return x
    return np.pad(x, ((0, 0), *padding, (0, 0)), constant_values=x.dtype.type(value))


def taps(
    image: np.ndarray, window: Pair, counts: Pair, strides: Pair, dilations: Pair
) -> Iterator[tuple[int, int, np.ndarray]]:
    """For every position within a window: row, column, and view [N,H',W',C] of the padded image."""
    for r in range(window[0]):
        for s in range(window[1]):
            top, left = r * dilations[0], s * dilations[1]
            rows = slice(top, top + (counts[0] - 1) * strides[0] + 1, strides[0])
            columns = slice(left, left + (counts[1] - 1) * strides[1] + 1, strides[1])
            yield r, s, image[:, rows, columns]


def counts_of(size: Any, window: Any, strides: Pair, padding: Padding, dilations: Pair) -> Pair:
    """Positions of a window over an image: (height, width)."""
    height, width = (
        (size[i] + sum(padding[i]) - (window[i] - 1) * dilations[i] - 1) // strides[i] + 1
        for i in (0, 1)
    )
    return height, width


def windows_of(
    x: np.ndarray, window: Any, strides: Pair, padding: Padding, dilations: Pair
) -> np.ndarray:
    """[N,H',W',R,S,C]: a view of every window of the padded image."""
    counts = counts_of(x.shape[1:3], window, strides, padding, dilations)
    image = pad_image(x, padding)
    step = image.strides
    return np.lib.stride_tricks.as_strided(
        image,
        (x.shape[0], *counts, *window, x.shape[3]),
        (
            step[0],
            step[1] * strides[0],
            step[2] * strides[1],
            step[1] * dilations[0],
            step[2] * dilations[1],
            step[3],
        ),
        writeable=False,
    )


def _patches(
    x: np.ndarray, window: Any, strides: Pair, padding: Padding, dilations: Pair
) -> np.ndarray:
    """[N H' W', R S C]: every window of the padded image as a row."""
    view = windows_of(x, window, strides, padding, dilations)
    return view.reshape(math.prod(view.shape[:3]), -1)


def _crop(image: np.ndarray, padding: Padding, size: Pair) -> np.ndarray:
    (top, _), (left, _) = padding
    return np.asarray(image[:, top : top + size[0], left : left + size[1]], order="C")


def _blank_image(dy: np.ndarray, padding: Padding, size: Pair, channels: int) -> np.ndarray:
    height, width = (size[i] + sum(padding[i]) for i in (0, 1))
    return np.zeros((dy.shape[0], height, width, channels), dy.dtype)


@plain("conv2d")
def conv2d(x, w, *, strides, padding, dilations):
    """Patches times filters."""
    window = w.shape[:2]
    counts = counts_of(x.shape[1:3], window, strides, padding, dilations)
    patches = _patches(x, window, strides, padding, dilations)
    return (patches @ w.reshape(-1, w.shape[3])).reshape(x.shape[0], *counts, w.shape[3])


@plain("conv2d_filter_grad")
def conv2d_filter_grad(x, dy, *, window, strides, padding, dilations):
    """Transposed patches times dy."""
    patches = _patches(x, window, strides, padding, dilations)
    product = patches.T @ dy.reshape(-1, dy.shape[3])
    return product.reshape(*window, x.shape[3], dy.shape[3])


@plain("conv2d_input_grad")
def conv2d_input_grad(w, dy, *, size, strides, padding, dilations):
    """dy times transposed filters, every row added back to its window."""
    window, channels = sides(w, first=0), w.shape[2]
    rows = dy.reshape(-1, dy.shape[3]) @ w.reshape(-1, w.shape[3]).T
    parts = rows.reshape(*dy.shape[:3], *window, channels)
    image = _blank_image(dy, padding, size, channels)
    for r, s, view in taps(image, window, sides(dy), strides, dilations):
        view += parts[:, :, :, r, s]
    return _crop(image, padding, size)


@plain("depthwise_conv2d")
def depthwise_conv2d(x, w, *, strides, padding, dilations):
    """Sum over taps; a channel's filters are adjacent in the result."""
    counts = counts_of(x.shape[1:3], sides(w, first=0), strides, padding, dilations)
    total = np.zeros((x.shape[0], *counts, *w.shape[2:]), x.dtype)
    for r, s, view in taps(pad_image(x, padding), sides(w, first=0), counts, strides, dilations):
        total += view[..., None] * w[r, s]
    return total.reshape(x.shape[0], *counts, -1)


@plain("depthwise_conv2d_filter_grad")
def depthwise_conv2d_filter_grad(x, dy, *, window, strides, padding, dilations):
    """For every tap and channel the product of its view with dy."""
    channels = x.shape[3]
    parts = dy.reshape(*dy.shape[:3], channels, -1)
    result = np.empty((*window, channels, parts.shape[-1]), x.dtype)
    counts = sides(dy)
    for r, s, view in taps(pad_image(x, padding), window, counts, strides, dilations):
        result[r, s] = np.einsum("nhwc,nhwcm->cm", view, parts)
    return result


@plain("depthwise_conv2d_input_grad")
def depthwise_conv2d_input_grad(w, dy, *, size, strides, padding, dilations):
    """dy times each tap's filters, added back to the elements that the tap read."""
    parts = dy.reshape(*dy.shape[:3], w.shape[2], -1)
    image = _blank_image(dy, padding, size, w.shape[2])
    for r, s, view in taps(image, sides(w, first=0), sides(dy), strides, dilations):
        view += (parts * w[r, s]).sum(-1)
    return _crop(image, padding, size)
