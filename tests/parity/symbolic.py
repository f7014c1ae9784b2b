"""Compares one graph of symbolic sizes, bound to several, with TensorFlow at those sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from cerebras_tf.capture.capture import Capture
from cerebras_tf.ir import Dim, Graph, TensorType, Value, bind_graph, symbols_in, verify
from cerebras_tf.ops import Builder, infer
from cerebras_tf.passes.differentiate import differentiate
from cerebras_tf.passes.simplify import simplify
from tests.graphs import run_plain
from tests.parity.harness import assert_close, normal, oracle_session
from tests.tolerances import TOLERANCES

B, S, T = Dim.symbol("B", 6), Dim.symbol("S", 8), Dim.symbol("T", 8)
# The first and the last are the least and the largest sizes.
SIZES = ({"B": 1, "S": 1, "T": 1}, {"B": 2, "S": 5, "T": 3}, {"B": 3, "S": 4, "T": 7})
SIZES = (*SIZES, {"B": 6, "S": 8, "T": 8})
Build = Callable[..., Any]


def captured(build: Build, types: Sequence[TensorType], gradient: bool = True) -> Graph:
    """The graph of outputs, then of gradients by the floating inputs, of symbolic sizes.

    Gradients are those of the sum of the floating outputs; inputs are all placeholders in order.
    """
    with tf.Graph().as_default():
        placeholders = _placeholders(types)
        outputs = _listed(build(*placeholders))
        features = dict(zip(placeholders, types))
        wanted = {str(number): tensor for number, tensor in enumerate(outputs)}
        step = Capture({}, features).run(wanted)
    graph = step.graph
    ys = [value for value in graph.outputs if value.type.is_floating]
    xs = [step.features.get(x.name) for x in placeholders]
    by = [x for x in xs if x is not None and x.type.is_floating] if gradient and ys else []
    if by:
        attrs = {"ys": len(ys), "dys": (False,) * len(ys), "xs": len(by)}
        graph.outputs += Builder(graph).multi("gradient", *ys, *by, **attrs)
        differentiate(graph)
    simplify(graph)
    verify(graph, infer)
    graph.inputs = [
        graph.add_input("unused", type) if x is None else x for x, type in zip(xs, types)
    ]
    return graph


def check_symbolic(
    build: Build,
    *types: TensorType,
    family: str = "matmul",
    gradient: bool = True,
    sizes: Sequence[Mapping[str, int]] = SIZES,
) -> Graph:
    """Asserts that a graph captured once computes TensorFlow's numbers at every size.

    Args:
        build: makes a tensor (or a list of them) from one placeholder an input; dimensions that
            are symbolic are None to TensorFlow.
        types: of the inputs.
        family: row of the tolerance table; gradients have the row "gradient" where it is wider.
        gradient: whether to compare the gradients of the sum of the outputs.
        sizes: what the symbols are bound to.

    Returns:
        The graph of symbolic sizes.
    """
    graph = captured(build, types, gradient)
    unknown = [v for n in graph.nodes for v in n.outputs if not v.type.is_bounded]
    assert not unknown, f"sizes lost: {unknown}"
    for numbers in sizes:
        bound = bind_graph(graph, numbers)
        verify(bound, infer)  # what is inferred for numbers is what symbols stand for
        assert not symbols_in(bound)
        arrays = [_content(type.at(numbers), seed) for seed, type in enumerate(types)]
        ours = run_plain(bound, arrays)
        wanted, found = _run_tensorflow(build, types, arrays, gradient)
        _compare(ours, wanted, found, bound.inputs, TOLERANCES[family], numbers)
    return graph


def _compare(
    ours: Sequence[Any],
    wanted: Sequence[Any],
    found: Sequence[Any],
    inputs: Sequence[Value],
    tolerance: Any,
    numbers: Any,
) -> None:
    for number, (mine, theirs) in enumerate(zip(ours, wanted)):
        assert_close(mine, theirs, tolerance, f"output {number} at {numbers}")
    wide = tuple(np.maximum(tolerance, TOLERANCES["gradient"]))
    mine = iter(ours[len(wanted) :])
    for value, theirs in zip([v for v in inputs if v.type.is_floating], found):
        if value.name.startswith("unused"):
            continue
        assert_close(next(mine), theirs, wide, f"gradient by {value} at {numbers}")
    assert not list(mine)


def _placeholders(types: Sequence[TensorType]) -> list[Any]:
    return [
        tf.compat.v1.placeholder(
            type.dtype, [dim if isinstance(dim, int) else None for dim in type.shape]
        )
        for type in types
    ]


def _listed(built: Any) -> list[Any]:
    return list(built) if isinstance(built, (list, tuple)) else [built]


def _content(type: TensorType, seed: int) -> np.ndarray:
    kind = type.numpy_dtype
    if kind.kind == "f":
        return normal(*type.shape, seed=seed).astype(kind)
    random = np.random.default_rng([seed, *type.shape])
    return random.integers(0, 2 if kind.kind == "b" else 4, type.shape).astype(kind)


def _run_tensorflow(
    build: Build, types: Sequence[TensorType], arrays: Sequence[np.ndarray], gradient: bool
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    with tf.Graph().as_default(), oracle_session() as session:
        placeholders = _placeholders(types)
        feed = dict(zip(placeholders, arrays))
        outputs = _listed(build(*placeholders))
        ys = [y for y in outputs if y.dtype.is_floating]
        xs = [x for x in placeholders if x.dtype.is_floating] if gradient and ys else []
        found = tf.gradients(ys, xs, unconnected_gradients="zero") if xs else []
        return session.run([outputs, [tf.convert_to_tensor(dx) for dx in found]], feed)
