"""Graphs of operations in static single assignment form.

A graph owns its nodes in execution order. A value is produced once, by a node or as a graph input.
Types are given here, not inferred.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Optional

from cerebras_tf.errors import GraphError
from cerebras_tf.ir.types import Array, Shape, TensorType


class Value:
    """One tensor of a graph.

    Attributes:
        name: unique within its graph.
        type: dtype and shape.
        node: the node that produces it; None for a graph input.
        index: which of the node's outputs it is.
    """

    __slots__ = ("index", "name", "node", "type")

    def __init__(
        self, name: str, type: TensorType, node: Optional[Node] = None, index: int = 0
    ) -> None:
        self.name = name
        self.type = type
        self.node = node
        self.index = index

    @property
    def dtype(self) -> str:
        """Name of the element type."""
        return self.type.dtype

    @property
    def shape(self) -> Shape:
        """Dimensions; None for a size that is known only after the value is computed."""
        return self.type.shape

    @property
    def constant(self) -> Optional[Array]:
        """The array, where the value is a constant; else None."""
        if self.node is not None and self.node.op == "constant":
            value: Array = self.node.attrs["value"]
            return value
        return None

    def __repr__(self) -> str:
        return f"%{self.name}: {self.type}"


class Node:
    """One operation.

    Attributes:
        op: name of the op, a key of the op table.
        inputs: operands in order.
        attrs: keyword attributes: Python literals, Dims, arrays, or graphs (of structural ops).
        outputs: results in order.
        source: the front end's name of the operation it came from; "" if there is none. Messages
            show it, and users select operations by it (keep_float32).
        layer: number of its layer; -1 if there is none.
    """

    __slots__ = ("attrs", "direction", "inputs", "layer", "op", "outputs", "source")

    def __init__(
        self, op: str, inputs: Sequence[Value], attrs: dict[str, Any], source: str = ""
    ) -> None:
        self.op = op
        self.inputs = list(inputs)
        self.attrs = attrs
        self.outputs: list[Value] = []
        self.source = source
        self.layer = -1
        self.direction = "forward"

    @classmethod
    def of_types(
        cls,
        op: str,
        inputs: Sequence[TensorType],
        outputs: Sequence[TensorType],
        attrs: dict[str, Any],
    ) -> Node:
        """A node outside of any graph, with operands and outputs of these types."""
        node = cls(op, [Value("", type) for type in inputs], attrs)
        node.outputs = [Value("", type, node, i) for i, type in enumerate(outputs)]
        return node

    @property
    def output(self) -> Value:
        """The only output; raises GraphError if there are several."""
        if len(self.outputs) != 1:
            raise GraphError(
                f"node {self.op}: one output expected. Received: {len(self.outputs)}. "
                "Use node.outputs."
            )
        return self.outputs[0]

    @property
    def subgraphs(self) -> dict[str, Graph]:
        """Attributes that are graphs, by name."""
        return {key: value for key, value in self.attrs.items() if isinstance(value, Graph)}

    def __repr__(self) -> str:
        outputs = ", ".join(f"%{value.name}" for value in self.outputs)
        inputs = ", ".join(f"%{value.name}" for value in self.inputs)
        return f"{outputs} = {self.op}({inputs})"


class Graph:
    """Inputs, nodes in execution order, and outputs.

    Attributes:
        nodes: in execution order.
        outputs: values that are returned; may repeat, may be inputs.
    """

    def __init__(self, name: str = "graph") -> None:
        self.name = name
        self.inputs: list[Value] = []
        self.nodes: list[Node] = []
        self.outputs: list[Value] = []
        self._names: dict[str, int] = {}

    def unique_name(self, wanted: str) -> str:
        """Reserves and returns `wanted`, or `wanted.N` if it is taken."""
        count = self._names.get(wanted)
        if count is None:
            self._names[wanted] = 0
            return wanted
        while True:
            count += 1
            name = f"{wanted}.{count}"
            if name not in self._names:
                self._names[wanted] = count
                self._names[name] = 0
                return name

    def add_input(self, name: str, type: TensorType) -> Value:
        """Appends a graph input and returns its value."""
        value = Value(self.unique_name(name), type)
        self.inputs.append(value)
        return value

    def make_node(
        self,
        op: str,
        inputs: Sequence[Value],
        attrs: dict[str, Any],
        types: Iterable[TensorType],
        source: str = "",
    ) -> Node:
        """A node with new output values, not yet in `nodes`."""
        node = Node(op, inputs, attrs, source)
        for index, type in enumerate(types):
            node.outputs.append(Value(self.unique_name(op), type, node, index))
        return node

    def users(self) -> dict[Value, list[Node]]:
        """For every value, the nodes that read it, once for each operand."""
        found: dict[Value, list[Node]] = {}
        for node in self.nodes:
            for value in node.inputs:
                found.setdefault(value, []).append(node)
        return found

    def replace(self, mapping: dict[Value, Value]) -> None:
        """Replaces every use of a key by its value, following chains."""

        def final(value: Value) -> Value:
            while value in mapping:
                value = mapping[value]
            return value

        for node in self.nodes:
            node.inputs = [final(value) for value in node.inputs]
        self.outputs = [final(value) for value in self.outputs]

    def prune(self) -> bool:
        """Removes nodes that the outputs do not depend on; returns whether there were any."""
        needed = set(self.outputs)
        kept: list[Node] = []
        for node in reversed(self.nodes):
            if any(value in needed for value in node.outputs):
                needed.update(node.inputs)
                kept.append(node)
        changed = len(kept) != len(self.nodes)
        self.nodes = kept[::-1]
        return changed

    def sort(self) -> None:
        """Sorts nodes topologically and stably; raises GraphError where they form a cycle."""
        done: set[Node] = set()
        ordered: list[Node] = []
        for root in self.nodes:
            stack = [(root, iter(root.inputs))]
            visiting = {root}
            if root in done:
                continue
            while stack:
                node, operands = stack[-1]
                for value in operands:
                    maker = value.node
                    if maker is not None and maker not in done:
                        if maker in visiting:
                            raise GraphError(
                                f"graph {self.name}: nodes must not form a cycle. "
                                f"Received: {maker!r}. Check the pass that rewired it."
                            )
                        visiting.add(maker)
                        stack.append((maker, iter(maker.inputs)))
                        break
                else:
                    stack.pop()
                    visiting.discard(node)
                    done.add(node)
                    ordered.append(node)
        self.nodes = ordered

    def __str__(self) -> str:
        from cerebras_tf.ir.text import print_graph

        return print_graph(self)
