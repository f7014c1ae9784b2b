"""Fuses RMS normalization.

Before: `%s = square(%x)  %m = mean(%s)  %r = rsqrt(add(%m, epsilon))  %u = mul(%x, %r)
%y = mul(%u, %gamma)`; after: `%y, %rstd = rms_norm(%x, %gamma)`. Without a multiplication by a
vector, gamma is 1. The pass does not fire where the mean is over another axis than the last, or
where a gradient is taken by a value in between. Source: Zhang and Sennrich, Root Mean Square Layer
Normalization (2019), equation 4.

After differentiation, what else reaches x as a cotangent (by a residual connection) is added by the
gradient: before `%dx, %dgamma = rms_norm_grad(%dy, ...)  %t = add(%dx, %other)`; after:
`%t, %dgamma = rms_norm_grad(%dy, ..., %other)`.
"""

from __future__ import annotations

from typing import NamedTuple, Optional

import numpy as np

from cerebras_tf.ir import Graph, Node, Value
from cerebras_tf.ops import Builder
from cerebras_tf.passes.fuse_layer_norm import is_vector, made_by, mean_of_last, split_epsilon
from cerebras_tf.passes.rewrite import gradient_operands, rewrite


class _Norm(NamedTuple):
    """What a node computes: the norm of x [..., H], by gamma [H] or 1."""

    x: Value
    gamma: Optional[Value]
    epsilon: float


def fuse_rms_norm(graph: Graph) -> None:
    """Replaces in place, before differentiation."""
    users, kept = graph.users(), gradient_operands(graph)
    found: dict[Node, _Norm] = {}
    for node in graph.nodes:
        if node.op in ("rsqrt", "sqrt"):
            for reader in users.get(node.output, ()):
                _find(node, reader, users, kept, found)
    rewrite(graph, lambda b, node: [_emit(b, found[node])] if node in found else None, fold=False)


def _find(
    root: Node,
    unit: Node,
    users: dict[Value, list[Node]],
    kept: set[Value],
    found: dict[Node, _Norm],
) -> None:
    """Adds the norm that a reader of a root computes, if it is one."""
    parts = split_epsilon(root.inputs[0])
    squares = None if parts is None else mean_of_last(parts[0])
    if parts is None or squares is None or unit.op != ("mul" if root.op == "rsqrt" else "div"):
        return
    x = unit.inputs[0 if unit.inputs[1] is root.output else 1]
    inner = {squares, parts[0], root.inputs[0], root.output}
    if unit.output.type != x.type or not _is_square(squares, x) or inner & kept:
        return
    readers = users.get(unit.output, ())
    if len(readers) == 1 and readers[0].op == "mul" and unit.output not in kept:
        (last,) = readers
        gamma = last.inputs[0 if last.inputs[1] is unit.output else 1]
        if is_vector(gamma, x) and last.output.type == x.type:
            found[last] = _Norm(x, gamma, parts[1])
            return
    if isinstance(x.shape[-1], int):
        found[unit] = _Norm(x, None, parts[1])


def _is_square(value: Value, x: Value) -> bool:
    made = value.node
    if made is None or made.inputs[0] is not x:
        return False
    if made.op == "pow":
        exponent = made.inputs[1].constant
        return exponent is not None and exponent.size == 1 and bool(np.all(exponent == 2))
    return made.op == "square" or (made.op == "mul" and made.inputs[1] is x)


def _emit(b: Builder, norm: _Norm) -> Value:
    x, gamma = norm.x, norm.gamma
    width = x.shape[-1:]
    if gamma is None:
        shape = x.type.with_shape(width).static_shape
        gamma = b.constant(np.ones(shape, x.type.numpy_dtype), x.dtype)
    elif gamma.type.rank != 1:
        gamma = b.op("reshape", gamma, shape=width)
    return b.multi("rms_norm", x, gamma, epsilon=norm.epsilon)[0]


def add_in_gradient(graph: Graph) -> None:
    """Fuses the addition of another cotangent in place, after differentiation."""
    users, wanted = graph.users(), set(graph.outputs)
    replaced: dict[Value, Value] = {}

    def joined(b: Builder, node: Node) -> Optional[list[Value]]:
        if node.op != "add":
            return None
        for dx, other in (node.inputs, node.inputs[::-1]):
            made = made_by(dx, "rms_norm_grad")
            alone = len(users.get(dx, ())) == 1 and dx not in wanted
            if made is None or not alone or len(made.inputs) > 4 or other.type != dx.type:
                continue
            if other.node is not None and other.node.layer < made.layer:  # computed later
                continue
            b.source, b.layer, b.direction = made.source, made.layer, made.direction
            total, dgamma = b.multi("rms_norm_grad", *made.inputs, other)
            replaced[made.outputs[1]] = dgamma
            return [total]
        return None

    rewrite(graph, joined, fold=False)
    if replaced:  # readers of dgamma may precede the sum
        graph.replace(replaced)
        graph.prune()
        graph.sort()
