"""Layouts that compiled kernels need: float32, contiguous, two axes. Copies only what has another
layout."""

from __future__ import annotations

from typing import Any

import numpy as np


class _Memory:
    """An array's memory offered as writable: Numba would compile again for read-only arrays."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array
        self.__array_interface__ = {
            **array.__array_interface__,
            "data": (array.__array_interface__["data"][0], False),
        }


def as_contiguous(array: np.ndarray) -> np.ndarray:
    """The array in C order and of a writable type; kernels never write to their operands."""
    if not array.flags.c_contiguous:
        return np.ascontiguousarray(array)
    if not array.flags.writeable:
        return np.asarray(_Memory(array))
    return array


def as_matrix(array: np.ndarray) -> np.ndarray:
    """[..., H] as a contiguous [N, H]; a vector becomes one row."""
    array = as_contiguous(array)
    if array.ndim == 2:
        return array
    if array.ndim == 0:
        return array.reshape(1, 1)
    rows = 1
    for size in array.shape[:-1]:
        rows *= size
    return array.reshape(rows, array.shape[-1])


def all_float32(*operands: Any, **attrs: Any) -> bool:
    """Whether every operand is float32."""
    return all(operand.dtype == "float32" for operand in operands)


def floats_are_float32(*operands: Any, **attrs: Any) -> bool:
    """Whether there are floating point operands, and all of them are float32."""
    names = [str(operand.dtype) for operand in operands]
    floats = [name for name in names if "float" in name]
    return bool(floats) and all(name == "float32" for name in floats)
