"""Convolutions as products on all threads: patches of the image (im2col) times the filters.

Letters as in convolution.py.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from cerebras_tf.kernels.blas import gemm
from cerebras_tf.kernels.compiled_threads import parallel_tasks
from cerebras_tf.kernels.convolution import Padding, Pair, counts_of, sides, taps, windows_of
from cerebras_tf.kernels.registry import Scratch, compiled
from cerebras_tf.kernels.scratch import borrow

_NO_PADDING = ((0, 0), (0, 0))


def _is_floating(*operands: Any, **attrs: Any) -> bool:
    return str(operands[0].dtype) in ("float32", "float64")


def _is_product(window: Any, strides: Pair, padding: Padding) -> bool:
    """Whether every pixel is a window: the image itself holds the patches."""
    return tuple(window) == tuple(strides) == (1, 1) and padding == _NO_PADDING


@contextlib.contextmanager
def _patches(
    x: np.ndarray, window: Any, strides: Pair, padding: Padding, dilations: Pair
) -> Iterator[np.ndarray]:
    """[N H' W', R S C]: every window of the padded image as a row, in scratch memory."""
    if _is_product(window, strides, padding) and x.flags.c_contiguous:
        yield x.reshape(-1, x.shape[3])
        return
    view = windows_of(x, window, strides, padding, dilations)
    with borrow(view.shape, x.dtype) as patches:

        def copy(image: int) -> None:
            np.copyto(patches[image], view[image])

        parallel_tasks(copy, len(view), view.size)
        yield patches.reshape(math.prod(view.shape[:3]), -1)


def _patch_bytes(
    x: Any, window: Any, strides: Pair, padding: Padding, dilations: Pair, itemsize: int
) -> int:
    """Bytes of the patches, and of the padded image."""
    if _is_product(window, strides, padding):
        return 0
    counts = counts_of(x.shape[1:3], window, strides, padding, dilations)
    padded = [x.shape[1 + axis] + sum(padding[axis]) for axis in (0, 1)]
    elements = math.prod(counts) * math.prod(window) + math.prod(padded)
    return int(x.shape[0] * elements * x.shape[3] * itemsize)


def _forward_scratch(x: Any, w: Any, **attrs: Any) -> Scratch:
    return Scratch(_patch_bytes(x, w.shape[:2], itemsize=x.numpy_dtype.itemsize, **attrs))


def _filter_scratch(x: Any, dy: Any, *, window: Any, **attrs: Any) -> Scratch:
    return Scratch(_patch_bytes(x, window, itemsize=x.numpy_dtype.itemsize, **attrs))


def _input_scratch(
    w: Any, dy: Any, *, size: Pair, strides: Pair, padding: Padding, dilations: Pair
) -> Scratch:
    rows = math.prod(dy.shape[:3]) * math.prod(w.shape[:3])
    image = dy.shape[0] * math.prod(size[i] + sum(padding[i]) for i in (0, 1)) * w.shape[2]
    return Scratch(int((rows + image) * dy.numpy_dtype.itemsize))


@compiled("conv2d", _is_floating, _forward_scratch)
def conv2d(x, w, *, out, strides, padding, dilations):
    """Patches times filters."""
    (result,) = out
    channels = w.shape[3]
    with _patches(x, w.shape[:2], strides, padding, dilations) as patches:
        gemm(patches, w.reshape(-1, channels), result.reshape(-1, channels))


@compiled("conv2d_filter_grad", _is_floating, _filter_scratch)
def conv2d_filter_grad(x, dy, *, out, window, strides, padding, dilations):
    """Transposed patches times dy."""
    (result,) = out
    channels = dy.shape[3]
    with _patches(x, window, strides, padding, dilations) as patches:
        gemm(patches.T, dy.reshape(-1, channels), result.reshape(-1, channels))


@compiled("conv2d_input_grad", _is_floating, _input_scratch)
def conv2d_input_grad(w, dy, *, out, size, strides, padding, dilations):
    """dy times transposed filters, every row added back to its window."""
    (result,) = out
    window, (counts, channels) = sides(w, first=0), (sides(dy), w.shape[2])
    filters, gradients = w.reshape(-1, w.shape[3]), dy.reshape(-1, dy.shape[3])
    (top, bottom), (left, right) = padding
    height, width = size[0] + top + bottom, size[1] + left + right
    with (
        borrow((len(dy), *counts, *window, channels), dy.dtype) as parts,
        borrow((len(dy), height, width, channels), dy.dtype) as images,
    ):
        gemm(gradients, filters.T, parts.reshape(len(gradients), -1))

        def add(number: int) -> None:
            image = images[number : number + 1]
            image[...] = 0
            for r, s, view in taps(image, window, counts, strides, dilations):
                view += parts[number : number + 1, :, :, r, s]
            result[number] = image[0, top : top + size[0], left : left + size[1]]

        parallel_tasks(add, len(dy), parts.size)
