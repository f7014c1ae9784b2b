"""Chooses the kernel of an instruction: compiled where there is one that fits, plain otherwise.

Every choice has one signature: call(arrays, out), writing into `out` where it is given. It
deliberately holds no arithmetic.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, Callable, Optional

import numpy as np

from cerebras_tf import kernels
from cerebras_tf.errors import UnsupportedOpError
from cerebras_tf.ir import Graph, TensorType
from cerebras_tf.ir.program import Instruction
from cerebras_tf.kernels.registry import COMPILED, PLAIN
from cerebras_tf.ops import lookup

# call(inputs, outputs): outputs are arrays to fill, or None where the result decides its shape.
Call = Callable[[Sequence[np.ndarray], "list[Optional[np.ndarray]]"], Sequence[np.ndarray]]


def choose(
    instruction: Instruction, inputs: Sequence[TensorType], outputs: Sequence[TensorType]
) -> Call:
    """The call that runs an instruction.

    Args:
        instruction: op and attributes.
        inputs: types of its operands.
        outputs: types of its results.

    Raises:
        UnsupportedOpError: the op has no kernel.
    """
    op, attrs = instruction.op, instruction.attrs
    if op == "cond":
        return _conditional(attrs["then"], attrs["orelse"])
    static = all(type.is_static for type in [*inputs, *outputs])
    if op == "fused_elementwise":
        fast = kernels.elementwise_compiler()
        if fast is not None and static:
            # An op without a generated form: node by node, slower.
            with contextlib.suppress(UnsupportedOpError):
                return _filling(fast(attrs["body"]))
        return _copying(lambda *arrays: run_graph(attrs["body"], arrays))
    found = COMPILED.get(op) if static else None
    if found is not None and (found.supports is None or found.supports(*inputs, **attrs)):
        compiled = found.run
        return _filling(lambda arrays, out: compiled(*arrays, out=tuple(out), **attrs))
    if op not in PLAIN:
        raise UnsupportedOpError(
            f"op {op} ('{instruction.source}'): must have a kernel. Received none. "
            "Add it in cerebras_tf/kernels/."
        )
    plain = PLAIN[op]
    return _copying(lambda *arrays: plain(*arrays, **attrs), view=lookup(op).view)


def _filling(kernel: Callable[..., Any]) -> Call:
    def call(arrays: Sequence[np.ndarray], out: list[Any]) -> Sequence[np.ndarray]:
        kernel(arrays, out)
        return out

    return call


def _copying(kernel: Callable[..., Any], view: bool = False) -> Call:
    """A plain kernel: its results are copied to where they belong.

    A result that is memory of an operand is copied too, unless it is meant to be a view: that
    memory is used anew, by the next output already where an operand is written over.
    """

    def call(arrays: Sequence[np.ndarray], out: list[Optional[np.ndarray]]) -> Sequence[np.ndarray]:
        results = kernel(*arrays)
        if not isinstance(results, tuple):
            results = (results,)
        if not view and (len(results) > 1 or any(target is None for target in out)):
            results = [_owned(result, arrays) for result in results]
        placed = []
        for result, target in zip(results, out):
            if target is None:
                placed.append(np.asarray(result))
            else:
                target[...] = result
                placed.append(target)
        return placed

    return call


def _owned(result: np.ndarray, operands: Sequence[np.ndarray]) -> np.ndarray:
    shared = any(np.may_share_memory(result, operand) for operand in operands)
    return np.array(result) if shared else result


def _conditional(then: Graph, orelse: Graph) -> Call:
    return _copying(
        lambda predicate, *operands: run_graph(then if bool(predicate) else orelse, operands)
    )


def run_graph(graph: Graph, arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """Runs a graph node by node with arrays allocated as they come; for branches and tests."""
    table = dict(zip(graph.inputs, arrays))
    for node in graph.nodes:
        if node.op == "constant":
            table[node.output] = node.attrs["value"]
            continue
        call = choose(
            Instruction(node.op, (), (), node.attrs, node.source),
            [value.type for value in node.inputs],
            [TensorType(value.dtype, (None,) * value.type.rank) for value in node.outputs],
        )
        results = call([table[value] for value in node.inputs], [None] * len(node.outputs))
        table.update(zip(node.outputs, results))
    return tuple(table[value] for value in graph.outputs)
