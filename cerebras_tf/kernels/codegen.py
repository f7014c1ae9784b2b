"""Elementwise fusion: one generated, compiled loop for a whole graph of elementwise ops.

Operands broadcast as in NumPy and may differ in dtype; an output may be the memory of an input of
its shape. What to fuse is a pass's choice.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import math
import os
import sys
import tempfile
import threading
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional

import numpy as np

from cerebras_tf.kernels.codegen_source import Pattern, check_body, write_source
from cerebras_tf.kernels.compiled_jit import CACHE_FOLDER
from cerebras_tf.kernels.compiled_threads import for_rows

_PLANS = 256  # layouts remembered for one body
_HEAVY = ("exp", "expm1", "log", "log1p", "sin", "cos", "tanh", "erf", "sigmoid", "softplus", "pow")
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


def compile_elementwise(body: Any) -> Callable[[Sequence[np.ndarray], Sequence[np.ndarray]], None]:
    """A function that computes a body of elementwise ops in one pass over memory.

    Args:
        body: an ir.Graph; constants in it are scalars. Its inputs and outputs correspond to the
            arrays of a call.

    Returns:
        call(inputs, out): inputs broadcast against each other to the shape of the outputs, which
        are C-contiguous and written in place. An output may share memory with one input of equal
        shape and dtype, element for element; otherwise outputs overlap nothing. Machine code is
        made at the first call with a new pattern of layouts.

    Raises:
        UnsupportedOpError: an op has no generated form for its operands' dtype.
    """
    return Fused(body)


class Fused:
    """A body, and the kernels and layouts met so far."""

    def __init__(self, body: Any) -> None:
        check_body(body)
        self.body = body
        heavy = sum(8 for node in body.nodes if node.op in _HEAVY)
        self.weight = max(1, (len(body.nodes) + heavy) // 8)
        self.plans: dict[Any, _Plan] = {}
        self.kernels: dict[Pattern, Any] = {}

    def __call__(self, inputs: Sequence[np.ndarray], out: Sequence[np.ndarray]) -> None:
        """Computes the body's outputs of `inputs` into `out`."""
        operands = [*inputs, *out]
        pointers = [array.__array_interface__["data"][0] for array in operands]
        same = _shared(operands, pointers, len(inputs))
        key = (same, tuple((a.dtype.char, a.shape, a.strides) for a in operands))
        plan = self.plans.get(key)
        if plan is None:
            if len(self.plans) >= _PLANS:
                self.plans.clear()
            plan = self.plans[key] = self._plan(operands, same)
        for i in plan.copies:
            operands[i] = np.ascontiguousarray(operands[i])
            pointers[i] = operands[i].__array_interface__["data"][0]
        _run(plan, np.array(pointers, np.int64), self.weight)

    def _plan(self, operands: list[np.ndarray], same: tuple[int, ...]) -> _Plan:
        inputs = len(same)
        shape = operands[inputs].shape
        copies: list[int] = []
        while True:
            sizes, steps = _collapse(shape, operands)
            wrong = [
                i
                for i in range(inputs)
                if steps[i][-1] not in (0, operands[i].itemsize) and i not in copies
            ]
            if not wrong:
                break
            copies.extend(wrong)
            operands = [
                np.ascontiguousarray(array) if i in wrong else array
                for i, array in enumerate(operands)
            ]
            same = tuple(-1 if i in copies else output for i, output in enumerate(same))
        pattern = Pattern(
            tuple(_dtype_name(array.dtype) for array in operands),
            tuple(bool(step[-1]) for step in steps),
            same,
        )
        if pattern not in self.kernels:
            self.kernels[pattern] = _kernel(self.body, pattern)
        return _Plan(
            self.kernels[pattern],
            math.prod(sizes[:-1]),
            sizes[-1],
            np.array(sizes[:-1], np.int64),
            np.array([step[:-1] for step in steps], np.int64).reshape(len(steps), -1),
            tuple(copies),
        )


@functools.cache
def _dtype_name(dtype: np.dtype[Any]) -> str:
    """The name, which takes NumPy longer to make than a small array."""
    return dtype.name


def _shared(
    operands: Sequence[np.ndarray], pointers: Sequence[int], inputs: int
) -> tuple[int, ...]:
    """For every input the output that is the same memory in the same layout; -1 for none."""
    written = {pointer: i for i, pointer in enumerate(pointers[inputs:])}
    found = []
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
        found.append(output)
    return tuple(found)


def _collapse(
    shape: Sequence[int], operands: Sequence[np.ndarray]
) -> tuple[list[int], list[list[int]]]:
    """The iteration space with as few axes as possible, and every operand's steps in bytes.

    Neighbouring axes that every operand walks in one stride become one. At least one is left.
    """
    sizes = [1]
    steps: list[list[int]] = [[0] for _ in operands]
    for axis in range(len(shape)):
        size = shape[axis]
        if size == 1:
            continue
        moves = []
        for array in operands:
            own = axis - (len(shape) - array.ndim)
            moves.append(array.strides[own] if own >= 0 and array.shape[own] != 1 else 0)
        if sizes[-1] == 1 or all(step[-1] == move * size for step, move in zip(steps, moves)):
            sizes[-1] *= size
            for step, move in zip(steps, moves):
                step[-1] = move
        else:
            sizes.append(size)
            for step, move in zip(steps, moves):
                step.append(move)
    return sizes, steps


def _run(plan: _Plan, addresses: np.ndarray, weight: int) -> None:
    kernel, rows, columns, sizes, steps, _ = plan
    work = rows * columns * weight
    by_rows = not rows < 8 < columns
    length, others = (rows, columns) if by_rows else (columns, rows)
    for_rows(kernel, length, work, by_rows, others, sizes, steps, addresses)


def _kernel(body: Any, pattern: Pattern) -> Any:
    """The compiled function of a body and pattern, from memory, from disk, or made now."""
    source = write_source(body, pattern, cached=True)
    name = "elementwise_" + hashlib.sha256(source.encode()).hexdigest()[:20]
    with _lock:  # a kernel of one name is made once
        if name not in _kernels:
            path = _save(name, source)
            if path is None:
                source = write_source(body, pattern, cached=False)
            _kernels[name] = _load(name, source, path)
        return _kernels[name]


def _save(name: str, source: str) -> Optional[Path]:
    """Writes the module unless it is there; complete or not at all, whoever else writes it."""
    if CACHE_FOLDER is None:
        return None
    path = CACHE_FOLDER / f"{name}.py"
    if path.exists():
        return path
    try:
        handle, temporary = tempfile.mkstemp(dir=CACHE_FOLDER, suffix=".tmp")
        with os.fdopen(handle, "w") as file:
            file.write(source)
        os.replace(temporary, path)
    except OSError:
        return None
    return path


def _load(name: str, source: str, path: Optional[Path]) -> Any:
    """Executes a module's source, from its file where it has one, and returns its kernel."""
    if path is not None:
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
        sys.modules[name] = module  # Numba looks cached functions up by module name
        spec.loader.exec_module(module)  # type: ignore[union-attr]
    else:
        module = types.ModuleType(name)
        sys.modules[name] = module
        exec(compile(source, f"<{name}>", "exec"), module.__dict__)
    return module.kernel
