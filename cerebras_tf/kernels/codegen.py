"""Elementwise fusion: one generated and compiled loop for a graph of elementwise ops.

Operands broadcast as in NumPy and may differ in dtype. An output may use the memory of an input of
its shape. A compiler pass chooses what to fuse.
"""

from __future__ import annotations

import functools
import hashlib
import math
import sys
import threading
import types
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from cerebras_tf.kernels.codegen_source import Pattern, check_body, write_source
from cerebras_tf.kernels.compiled_threads import parallel_for

_MAX_PLANS = 256  # layouts remembered for one body
_SLOW = ("exp", "expm1", "log", "log1p", "sin", "cos", "tanh", "erf", "sigmoid", "softplus", "pow")
_kernels: dict[str, Any] = {}
_lock = threading.Lock()


class _Plan(NamedTuple):
    """How to call a kernel for one set of layouts."""

    kernel: Any
    rows: int
    columns: int
    sizes: np.ndarray
    steps: np.ndarray
    copies: tuple[int, ...]


class FusedElementwise:
    """Computes a graph of elementwise ops in one pass over memory.

    `fused(inputs, out)` broadcasts the inputs to the shape of the outputs, which are C-contiguous
    and written in place. An output may share memory with one input of equal shape and dtype,
    element for element; otherwise outputs overlap nothing. Machine code is made at the first call
    with a new pattern of layouts.

    Args:
        body: an ir.Graph; its constants are scalars.

    Raises:
        UnsupportedOpError: an op has no generated form for its operands' dtype.
    """

    def __init__(self, body: Any) -> None:
        check_body(body)
        self.body = body
        slow = sum(8 for node in body.nodes if node.op in _SLOW)
        self.weight = max(1, (len(body.nodes) + slow) // 8)
        self.plans: dict[Any, _Plan] = {}
        self.kernels: dict[Pattern, Any] = {}

    def __call__(self, inputs: Sequence[np.ndarray], out: Sequence[np.ndarray]) -> None:
        """Computes the outputs of `inputs` into `out`."""
        operands = [*inputs, *out]
        pointers = [array.__array_interface__["data"][0] for array in operands]
        aliases = _output_aliases(operands, pointers, len(inputs))
        key = (aliases, tuple((a.dtype.char, a.shape, a.strides) for a in operands))
        plan = self.plans.get(key)
        if plan is None:
            if len(self.plans) >= _MAX_PLANS:
                self.plans.clear()
            plan = self.plans[key] = self._plan(operands, aliases)
        for i in plan.copies:
            operands[i] = np.ascontiguousarray(operands[i])
            pointers[i] = operands[i].__array_interface__["data"][0]
        _run(plan, np.array(pointers, np.int64), self.weight)

    def _plan(self, operands: list[np.ndarray], aliases: tuple[int, ...]) -> _Plan:
        inputs = len(aliases)
        shape = operands[inputs].shape
        copies: list[int] = []
        while True:
            sizes, steps = _collapse(shape, operands)
            strided = [
                i
                for i in range(inputs)
                if steps[i][-1] not in (0, operands[i].itemsize) and i not in copies
            ]
            if not strided:
                break
            copies.extend(strided)
            operands = [
                np.ascontiguousarray(array) if i in strided else array
                for i, array in enumerate(operands)
            ]
            aliases = tuple(-1 if i in copies else output for i, output in enumerate(aliases))
        pattern = Pattern(
            tuple(_dtype_name(array.dtype) for array in operands),
            tuple(bool(steps_of[-1]) for steps_of in steps),
            aliases,
        )
        if pattern not in self.kernels:
            self.kernels[pattern] = _kernel_of(self.body, pattern)
        return _Plan(
            self.kernels[pattern],
            math.prod(sizes[:-1]),
            sizes[-1],
            np.array(sizes[:-1], np.int64),
            np.array([steps_of[:-1] for steps_of in steps], np.int64).reshape(len(steps), -1),
            tuple(copies),
        )


@functools.cache
def _dtype_name(dtype: np.dtype[Any]) -> str:
    """dtype.name, which takes longer to compute than a small array."""
    return dtype.name


def _output_aliases(
    operands: Sequence[np.ndarray], pointers: Sequence[int], inputs: int
) -> tuple[int, ...]:
    """For every input, the output with the same memory and layout; -1 for none."""
    written = {pointer: i for i, pointer in enumerate(pointers[inputs:])}
    aliases = []
    for array, pointer in zip(operands, pointers[:inputs]):
        output = written.get(pointer, -1)
        if output >= 0:
            other = operands[inputs + output]
            if (array.shape, array.strides, array.dtype) != (
                other.shape,
                other.strides,
                other.dtype,
            ):
                output = -1
        aliases.append(output)
    return tuple(aliases)


def _collapse(
    shape: Sequence[int], operands: Sequence[np.ndarray]
) -> tuple[list[int], list[list[int]]]:
    """The iteration space with as few axes as possible (at least one), and every operand's byte
    strides.

    Neighbouring axes that every operand walks in one stride become one.
    """
    sizes = [1]
    steps: list[list[int]] = [[0] for _ in operands]
    for axis in range(len(shape)):
        size = shape[axis]
        if size == 1:
            continue
        advances = []
        for array in operands:
            array_axis = axis - (len(shape) - array.ndim)
            advances.append(
                array.strides[array_axis] if array_axis >= 0 and array.shape[array_axis] != 1 else 0
            )
        if sizes[-1] == 1 or all(
            steps_of[-1] == move * size for steps_of, move in zip(steps, advances)
        ):
            sizes[-1] *= size
            for steps_of, move in zip(steps, advances):
                steps_of[-1] = move
        else:
            sizes.append(size)
            for steps_of, move in zip(steps, advances):
                steps_of.append(move)
    return sizes, steps


def _run(plan: _Plan, addresses: np.ndarray, weight: int) -> None:
    kernel, rows, columns, sizes, steps, _ = plan
    work = rows * columns * weight
    by_rows = not rows < 8 < columns
    length, others = (rows, columns) if by_rows else (columns, rows)
    parallel_for(kernel, length, work, by_rows, others, sizes, steps, addresses)


def _kernel_of(body: Any, pattern: Pattern) -> Any:
    """The compiled function of a body and pattern: from memory, from disk, or compiled now."""
    source = write_source(body, pattern)
    name = "elementwise_" + hashlib.sha256(source.encode()).hexdigest()[:20]

    with _lock:
        if name not in _kernels:
            _kernels[name] = _load(name, source)
        return _kernels[name]


def _load(name: str, source: str) -> Any:
    """Executes a module's source and returns its kernel. Numba caches it by the module's name."""
    module = types.ModuleType(name)
    sys.modules[name] = module
    exec(compile(source, f"{name}.py", "exec"), module.__dict__)
    return module.kernel
