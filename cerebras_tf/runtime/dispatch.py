"""Chooses the kernel of an instruction: a compiled one that supports it, else the plain one.

Every choice has one signature: call(arrays, out), writing into `out` where it is given.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Optional

import numpy as np

from cerebras_tf.errors import UnsupportedOpError
from cerebras_tf.ir import Array, Graph, Node, TensorType
from cerebras_tf.ir.program import Instruction
from cerebras_tf.ir.types import HALF_TYPES
from cerebras_tf.kernels import scratch
from cerebras_tf.kernels.half_precision import as_float32, from_float32, to_storage
from cerebras_tf.kernels.registry import CompiledKernel, KernelTable, Scratch
from cerebras_tf.ops import gives_view
from cerebras_tf.runtime.backend import Call

BFLOAT16 = "bfloat16"
Types = Sequence[TensorType]


def compiled_kernel(
    kernels: KernelTable, op: str, inputs: Types, outputs: Types, attrs: dict[str, Any]
) -> Optional[CompiledKernel]:
    """The compiled kernel that supports an instruction of known sizes, or None."""
    found = kernels.compiled.get(op)
    if found is None or not all(type.is_static for type in [*inputs, *outputs]):
        return None
    checked = [*([] if found.reads_bfloat16 else inputs)]
    checked += [] if found.writes_bfloat16 else outputs
    if any(type.dtype == BFLOAT16 for type in checked):
        return None
    return found if found.supports is None or found.supports(*inputs, **attrs) else None


def choose(instruction: Instruction, inputs: Types, outputs: Types, kernels: KernelTable) -> Call:
    """The call that runs an instruction.

    Raises:
        UnsupportedOpError: the op has no kernel.
    """
    op, attrs = instruction.op, instruction.attrs
    if op == "fused_elementwise":
        return _fused(attrs["body"], inputs, outputs, kernels)
    if op not in kernels.plain:
        raise UnsupportedOpError(
            f"op {op} ('{instruction.source}'): must have a kernel. Received: none. "
            "Add it in cerebras_tf/kernels/."
        )
    plain = kernels.plain[op]
    view = gives_view(op, inputs, outputs, attrs)
    found = None if view else compiled_kernel(kernels, op, inputs, outputs, attrs)
    if found is not None:
        compiled = found.run
        return _filling(lambda arrays, out: compiled(*arrays, out=tuple(out), **attrs))
    if view:
        return copying(lambda *arrays: plain(*arrays, **attrs), view=True)
    return copying(_widened(lambda *arrays: plain(*arrays, **attrs), inputs, outputs))


def needed_scratch(
    kernels: KernelTable, op: str, inputs: Types, outputs: Types, attrs: dict[str, Any]
) -> Scratch:
    """Scratch memory of the kernel that `choose` returns; of a plain kernel, its results.

    Temporary arrays of NumPy in a plain kernel are not counted.
    """
    static = all(type.is_static for type in [*inputs, *outputs])
    if not static or gives_view(op, inputs, outputs, attrs):
        return Scratch()
    if op == "fused_elementwise" and kernels.elementwise is not None:
        return Scratch()
    found = compiled_kernel(kernels, op, inputs, outputs, attrs)
    if found is not None:
        return Scratch() if found.scratch is None else found.scratch(*inputs, **attrs)
    return Scratch(sum(type.max_bytes for type in outputs))


def _fused(body: Graph, inputs: Types, outputs: Types, kernels: KernelTable) -> Call:
    static = all(type.is_static for type in [*inputs, *outputs])
    if kernels.elementwise is not None and static:
        # An op without a generated form: node by node, slower.
        with contextlib.suppress(UnsupportedOpError):
            return _filling(kernels.elementwise(body))
    return copying(graph_call(body, kernels))


def _filling(kernel: Callable[..., Any]) -> Call:
    def call(arrays: Sequence[Array], out: Sequence[Any]) -> Sequence[Array]:
        kernel(arrays, out)
        return out

    return call


def copying(kernel: Callable[..., Any], view: bool = False) -> Call:
    """A call of a function that returns new results, which are copied to the outputs.

    Results that share memory with an operand are copied too, unless they are views, because that
    memory is overwritten later.
    """

    def call(arrays: Sequence[Array], out: Sequence[Optional[Array]]) -> Sequence[Array]:
        results = kernel(*arrays)
        if not isinstance(results, tuple):
            results = (results,)
        if not view:
            scratch.count_external(sum(np.asarray(result).nbytes for result in results))
            if len(results) > 1 or any(target is None for target in out):
                results = [unshared(result, arrays) for result in results]
        placed = []
        for result, target in zip(results, out):
            if target is None:
                placed.append(np.asarray(result))
            else:
                target[...] = result
                placed.append(target)
        return placed

    return call


def unshared(result: Array, operands: Sequence[Array]) -> Array:
    """The result, copied if it may share memory with an operand."""
    shared = any(np.may_share_memory(result, operand) for operand in operands)
    return np.array(result) if shared else result


def _widened(kernel: Callable[..., Any], inputs: Types, outputs: Types) -> Callable[..., Any]:
    """A kernel for half precision that computes in float32 and rounds results to nearest even.

    Results of +, -, *, / and square roots are correctly rounded (Figueroa, 1995). Sums and matrix
    products are rounded once, not at every term.
    """
    source, target = ([type.dtype for type in types] for types in (inputs, outputs))
    if not set(HALF_TYPES) & {*source, *target}:
        return kernel

    def run(*arrays: Array) -> tuple[Array, ...]:
        results = kernel(*(as_float32(a, dtype) for a, dtype in zip(arrays, source)))
        results = results if isinstance(results, tuple) else (results,)
        return tuple(from_float32(r, dtype) for r, dtype in zip(results, target))

    return run


def graph_call(graph: Graph, kernels: KernelTable) -> Callable[..., tuple[Array, ...]]:
    """A function that runs a graph node by node."""
    calls = []
    for node in graph.nodes:
        if node.op != "constant":
            calls.append((node, choose_for(node, kernels)))
    constants = {
        n.output: to_storage(n.attrs["value"], n.output.dtype)
        for n in graph.nodes
        if n.op == "constant"
    }

    def run(*arrays: Array) -> tuple[Array, ...]:
        table = {**constants, **dict(zip(graph.inputs, arrays))}
        for node, call in calls:
            results = call([table[value] for value in node.inputs], [None] * len(node.outputs))
            table.update(zip(node.outputs, results))
        return tuple(table[value] for value in graph.outputs)

    return run


def choose_for(node: Node, kernels: KernelTable) -> Call:
    """The call of a node, which allocates its results."""
    return choose(
        Instruction(node.op, (), (), node.attrs, node.source),
        [value.type for value in node.inputs],
        [TensorType(value.dtype, (None,) * value.type.rank) for value in node.outputs],
        kernels,
    )
