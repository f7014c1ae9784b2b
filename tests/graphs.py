"""Small graphs for tests, and the oracle of every pass: the plain kernels.

No op is known here by meaning. Compiled kernels are not used: they are what is compared with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cerebras_tf.ir import Graph, Value, parse_type, print_graph, verify
from cerebras_tf.kernels.registry import evaluate
from cerebras_tf.ops import Builder, infer

# Rewrites change the order of float32 operations, no more.
CLOSE = (1e-5, 1e-6)


def graph_of(build: Callable[..., Any], *types: str) -> Graph:
    """A graph of what `build(builder, *inputs)` returns; types as "float32[2,?]"."""
    graph = Graph()
    inputs = [graph.add_input(f"x{i}", parse_type(text)) for i, text in enumerate(types)]
    outputs = build(Builder(graph), *inputs)
    graph.outputs = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
    verify(graph, infer)
    return graph


def random_inputs(graph: Graph, seed: int = 0, unknown: int = 3) -> list[np.ndarray]:
    """Arrays for a graph's inputs; dimensions not known are `unknown`."""
    random = np.random.default_rng(seed)
    arrays = []
    for value in graph.inputs:
        shape = tuple(unknown if dim is None else dim for dim in value.shape)
        kind = value.type.numpy_dtype
        if kind.kind == "f":
            arrays.append(random.standard_normal(shape).astype(kind))
        elif kind.kind == "b":
            arrays.append(np.asarray(random.integers(0, 2, shape).astype(bool)))
        else:
            arrays.append(np.asarray(random.integers(0, 4, shape).astype(kind)))
    return arrays


def run_plain(graph: Graph, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Outputs of a graph through the plain kernels; asserts that all values have their types."""
    values: dict[Value, np.ndarray] = dict(zip(graph.inputs, arrays))
    for node in graph.nodes:
        operands = [values[value] for value in node.inputs]
        if node.op == "cond":
            branch = node.attrs["then" if operands[0] else "orelse"]
            results: Sequence[np.ndarray] = run_plain(branch, operands[1:])
        elif node.op in LOOPS:
            results = LOOPS[node.op](operands, node)
        elif node.op == "fused_elementwise":
            results = run_plain(node.attrs["body"], operands)
        elif node.op == "custom_gradient":
            results = operands[: node.attrs["xs"]]
        else:
            results = evaluate(node.op, operands, node.attrs)
        assert len(results) == len(node.outputs), node
        for value, array in zip(node.outputs, results):
            assert_type(array, value, node)
            values[value] = array
    return [values[value] for value in graph.outputs]


def _scan(operands: Sequence[np.ndarray], node: Any) -> list[np.ndarray]:
    a = node.attrs
    length, rest = a["length"], list(operands)
    steps = min(int(rest.pop(0)), length) if a["counted"] else length
    carries, xs = rest[: a["carries"]], rest[a["carries"] :][: a["xs"]]
    consts = rest[a["carries"] + a["xs"] :]
    ys = [np.zeros(v.shape, v.type.numpy_dtype) for v in node.outputs[a["carries"] :]]
    for at in reversed(range(steps)) if a["reverse"] else range(steps):
        made = run_plain(a["body"], [*carries, *(x[at] for x in xs), *consts])
        carries = made[: a["carries"]]
        for y, value in zip(ys, made[a["carries"] :]):
            y[at] = value
    return [*carries, *ys]


def _while(operands: Sequence[np.ndarray], node: Any) -> list[np.ndarray]:
    a = node.attrs
    carries, consts = list(operands[: a["carries"]]), operands[a["carries"] :]
    while run_plain(a["cond"], [*carries, *consts])[0]:
        carries = run_plain(a["body"], [*carries, *consts])
    return carries


LOOPS = {"scan": _scan, "while": _while}


def assert_type(array: np.ndarray, value: Value, where: object) -> None:
    """Asserts that an array has the dtype and the known dimensions of a value."""
    assert array.dtype == value.type.numpy_dtype, f"{where}: {array.dtype} for {value}"
    assert array.ndim == value.type.rank, f"{where}: {array.shape} for {value}"
    fits = [dim in (None, size) for dim, size in zip(value.shape, array.shape)]
    assert all(fits), f"{where}: {array.shape} for {value}"


def check_pass(
    graph: Graph, apply: Callable[[Graph], None], seed: int = 0, close: tuple[float, float] = CLOSE
) -> list[str]:
    """Asserts that a pass keeps a graph's outputs and verifies, and that a second run does nothing.

    Returns:
        Ops of the graph after the pass, in order, constants left out.
    """
    arrays = random_inputs(graph, seed)
    types = [value.type for value in graph.outputs]
    wanted = run_plain(graph, arrays)
    apply(graph)
    verify(graph, infer)
    once = print_graph(graph)
    assert [value.type for value in graph.outputs] == types
    for ours, theirs in zip(run_plain(graph, arrays), wanted):
        np.testing.assert_allclose(ours, theirs, rtol=close[0], atol=close[1], err_msg=once)
    apply(graph)
    verify(graph, infer)
    assert canonical(graph) == canonical_text(once)
    return ops_of(graph)


def canonical(graph: Graph) -> str:
    """The text of a graph, values named by position."""
    return canonical_text(print_graph(graph))


def canonical_text(text: str) -> str:
    """Graph text with values renamed by the order in which they are met."""
    names: dict[str, str] = {}
    words = []
    for piece in text.split("%"):
        end = next((i for i, c in enumerate(piece) if not (c.isalnum() or c in "._")), len(piece))
        name = names.setdefault(piece[:end], str(len(names)))
        words.append(name + piece[end:])
    return "%".join(words)


def ops_of(graph: Graph) -> list[str]:
    """Ops in order, without constants."""
    return [node.op for node in graph.nodes if node.op != "constant"]
