"""Compares gradient rules with central differences in float64. It knows no op by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cerebras_tf.ir import Graph, TensorType, verify
from cerebras_tf.kernels.registry import evaluate
from cerebras_tf.ops import Builder, infer, lookup
from tests.differences import slope
from tests.graphs import run_plain


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
    gradients = run_plain(graph, [*arrays, cotangent])[1:]
    for (i, _), gradient in zip(found, gradients):
        assert gradient.shape == arrays[i].shape
        direction = random.standard_normal(arrays[i].shape)
        change = slope(lambda moved: evaluate(op, moved, attrs)[0], arrays, i, direction)
        expected = np.sum(cotangent * change)
        np.testing.assert_allclose(np.sum(gradient * direction), expected, rtol=rtol, atol=1e-7)
