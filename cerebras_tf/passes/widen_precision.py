"""Widens float16 and bfloat16 values to float32; casts between the three then have no effect.

Before: `%y: float16[4] = mul(%x, %x)`; after: `%y: float32[4] = mul(%x, %x)`. The types of graph
inputs are kept, and a cast is inserted after them. `precision: emulate` does not run this pass.
"""

from __future__ import annotations

from cerebras_tf.ir import Graph, TensorType, Value
from cerebras_tf.ops import Builder, infer

_HALF = ("float16", "bfloat16")


def widen_precision(graph: Graph) -> None:
    """Widens a graph and its regions in place."""
    _widen(graph, keep_inputs=True)


def _widen(graph: Graph, keep_inputs: bool) -> None:
    nodes = graph.nodes
    graph.nodes = []
    b = Builder(graph)
    widened: dict[Value, Value] = {}
    for value in graph.inputs:
        if value.dtype in _HALF and keep_inputs:
            widened[value] = b.op("cast", value, dtype="float32")
        elif value.dtype in _HALF:
            value.type = value.type.with_dtype("float32")
    for node in nodes:
        node.inputs = [widened.get(value, value) for value in node.inputs]
        for inner in node.subgraphs.values():
            _widen(inner, keep_inputs=False)
        if node.attrs.get("dtype") in _HALF:
            node.attrs["dtype"] = "float32"
            if node.op == "constant":
                node.attrs["value"] = node.attrs["value"].astype("float32")
        for value in node.outputs:
            if value.dtype in _HALF:
                value.type = value.type.with_dtype("float32")
        types: list[TensorType] = infer(node.op, node.inputs, node.attrs)
        for value, type in zip(node.outputs, types):
            value.type = type
        graph.nodes.append(node)
    graph.outputs = [widened.get(value, value) for value in graph.outputs]
