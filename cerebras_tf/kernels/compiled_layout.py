"""How compiled kernels want their operands: float32, two axes, contiguous, writable.

Copies only what is laid out otherwise. It does not allocate results.
"""

from __future__ import annotations

from typing import Any

import numpy as np


class _Memory:
    """An array's memory, offered as writable: Numba compiles read-only arrays a second time."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array
        self.__array_interface__ = {
            **array.__array_interface__,
            "data": (array.__array_interface__["data"][0], False),
        }


def ordinary(array: np.ndarray) -> np.ndarray:
    """The array in C order and writable in type; kernels never write to their operands."""
    if not array.flags.c_contiguous:
        return np.ascontiguousarray(array)
    if not array.flags.writeable:
        return np.asarray(_Memory(array))
    return array


def matrix(array: np.ndarray) -> np.ndarray:
    """[..., H] as an ordinary [N, H]; a vector becomes one row."""
    array = ordinary(array)
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
    """Whether every operand that is not an integer is float32, and there is one."""
    names = [str(operand.dtype) for operand in operands]
    floats = [name for name in names if "float" in name]
    return bool(floats) and all(name == "float32" for name in floats)
