"""Compares gradient rules with central differences in float64. It knows no op by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cerebras_tf.ir import Graph, TensorType, Value, verify
from cerebras_tf.kernels.registry import evaluate
from cerebras_tf.ops import Builder, infer, lookup

STEP = 1e-6


def run(graph: Graph, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Outputs of a graph through the plain kernels."""
    values: dict[Value, np.ndarray] = dict(zip(graph.inputs, arrays))
    for node in graph.nodes:
        results = evaluate(node.op, [values[value] for value in node.inputs], node.attrs)
        values.update(zip(node.outputs, results))
    return [values[value] for value in graph.outputs]


def check_vjp(op: str, arrays: Sequence[np.ndarray], rtol: float = 1e-6, **attrs: Any) -> None:
    """Asserts that the op's rule gives the derivative of its first output.

    Args:
        op: name in the op table.
        arrays: float64 operands, and integer or bool ones, which must get no cotangent.
        rtol: relative error allowed; central differences in float64 give about 1e-8.
        attrs: the op's attributes.
    """
    graph = Graph()
    b = Builder(graph)
    xs = [graph.add_input(f"x{i}", TensorType(a.dtype.name, a.shape)) for i, a in enumerate(arrays)]
    outputs = b.multi(op, *xs, **attrs)
    dy = graph.add_input("dy", outputs[0].type)
    node = outputs[0].node
    rule = lookup(op).vjp
    assert node is not None and rule is not None
    dxs = rule(b, node, [dy, *(None for _ in outputs[1:])])
    assert len(dxs) == len(xs)
    found = [(i, dx) for i, dx in enumerate(dxs) if dx is not None]
    assert [i for i, _ in found] == [i for i, a in enumerate(arrays) if a.dtype.kind == "f"]
    graph.outputs = [outputs[0], *(dx for _, dx in found)]
    verify(graph, infer)
    random = np.random.default_rng(11)
    cotangent = random.standard_normal(outputs[0].shape)
    gradients = run(graph, [*arrays, cotangent])[1:]
    for (i, _), gradient in zip(found, gradients):
        assert gradient.shape == arrays[i].shape
        direction = random.standard_normal(arrays[i].shape)
        values = []
        for sign in (1, -1):
            moved = list(arrays)
            moved[i] = arrays[i] + sign * STEP * direction
            values.append(evaluate(op, moved, attrs)[0])
        expected = np.sum(cotangent * (values[0] - values[1])) / (2 * STEP)
        np.testing.assert_allclose(np.sum(gradient * direction), expected, rtol=rtol, atol=1e-7)
