"""The gradients of loops.

Before: `%c, %y = scan(%c0, %x, %w; body)`; after: the same scan with more ys, the values of every
iteration that the reverse pass of the body reads (residuals), and a second scan over these in the
other direction. Its carries are the cotangents of the carries and the sums of those of the consts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from cerebras_tf.errors import UnsupportedOpError
from cerebras_tf.ir import Graph, Node, Size, TensorType, Value
from cerebras_tf.ops.builder import Builder
from cerebras_tf.ops.control import inline
from cerebras_tf.ops.registry import Reverse, draws
from cerebras_tf.ops.shape import zeros_like

Cotangents = list[Optional[Value]]


def scan_vjp(b: Builder, node: Node, dys: Cotangents, reverse: Reverse) -> Cotangents:
    """The reversed scan; the node gets more outputs."""
    step = _Step(b, node, dys, reverse)
    residuals = step.save_residuals(b)
    return step.run_reversed(b, dys, residuals)


def while_vjp(b: Builder, node: Node, dys: Cotangents, reverse: Reverse) -> Cotangents:
    """As of a scan of `bound` iterations, those after the last one of the loop without effect.

    The node becomes this scan, whose last carry says whether the loop still runs.
    """
    count, bound = node.attrs["carries"], node.attrs["bound"]
    if bound is None:
        raise UnsupportedOpError(
            "gradient of a loop: the largest number of its iterations must be known. Received: a "
            "condition that is not a counter compared with a size. Give tf.while_loop "
            "maximum_iterations, or stop the gradient."
        )
    cond, body = node.attrs["cond"], node.attrs["body"]
    graph = Graph(body.name)
    sub = Builder(graph, b.evaluate)
    carries = [graph.add_input(v.name, v.type) for v in body.inputs[:count]]
    live = graph.add_input("live", TensorType("bool", ()))
    consts = [graph.add_input(v.name, v.type) for v in body.inputs[count:]]
    (goes_on,) = inline(sub, cond, [*carries, *consts])
    live = sub.op("logical_and", live, goes_on)
    same = Graph(body.name + "_ended")
    same.outputs = [same.add_input(v.name, v.type) for v in body.inputs][:count]
    found = sub.multi("cond", live, *carries, *consts, then=body, orelse=same)
    graph.outputs = [*found, live]
    starts = b.constant(True)
    # In front of the node, whose operand it becomes.
    nodes = b.graph.nodes
    nodes.insert(nodes.index(node), nodes.pop())
    node.op = "scan"
    node.inputs = [*node.inputs[:count], starts, *node.inputs[count:]]
    node.attrs = {
        "body": graph,
        "carries": count + 1,
        "xs": 0,
        "length": bound,
        "reverse": False,
        "counted": False,
    }
    _add_outputs(b.graph, node, [live.type])
    answer = scan_vjp(b, node, [*dys, None], reverse)
    return answer[:count] + answer[count + 1 :]


class _Step:
    """One iteration, forward and backward, in one graph.

    Attributes:
        graph: inputs are those of the body, then the seeds and the sums so far; outputs are the
            cotangents of the carries, the new sums, and the cotangents of the slices.
    """

    def __init__(self, b: Builder, node: Node, dys: Cotangents, reverse: Reverse) -> None:
        self.node, self.attrs = node, node.attrs
        self.body: Graph = node.attrs["body"]
        self.carries, xs = node.attrs["carries"], node.attrs["xs"]
        graph = self.graph = Graph(self.body.name + "_gradient")
        self._sub = sub = Builder(graph, b.evaluate)
        self.inputs = [graph.add_input(v.name, v.type) for v in self.body.inputs]
        self.outputs = inline(sub, self.body, self.inputs)
        self.forward = list(graph.nodes)
        # Outputs with a cotangent: of carries it comes from the next iteration.
        self.given = [
            at
            for at, value in enumerate(self.outputs)
            if value.type.is_floating and (at < self.carries or dys[at] is not None)
        ]
        self.seeds = [graph.add_input(f"d_{at}", self.outputs[at].type) for at in self.given]
        wanted = [value for value in self.inputs if value.type.is_floating]
        ys = [self.outputs[at] for at in self.given]
        found = dict(zip(wanted, reverse(sub, ys, self.seeds, wanted)))
        first = self.carries + xs
        self.of_carries = [v for v in self.inputs[: self.carries] if v in found]
        self.of_xs = [v for v in self.inputs[self.carries : first] if found.get(v) is not None]
        self.of_consts = [v for v in self.inputs[first:] if found.get(v) is not None]
        self.xs, self.consts = self.inputs[self.carries : first], self.inputs[first:]
        self.sums = [graph.add_input(f"sum_{v.name}", v.type) for v in self.of_consts]
        graph.outputs = [
            *(self._or_zeros(v, found[v]) for v in self.of_carries),
            *(
                sub.op("add", s, self._or_zeros(v, found[v]))
                for s, v in zip(self.sums, self.of_consts)
            ),
            *(self._or_zeros(v, found[v]) for v in self.of_xs),
        ]
        self.backward = _needed(graph, set(self.forward))
        self.residuals = self._find_residuals()

    def _or_zeros(self, like: Value, found: Optional[Value]) -> Value:
        return zeros_like(self._sub, like) if found is None else found

    def _find_residuals(self) -> list[Value]:
        """What the reverse pass reads of the forward pass of the same iteration.

        What depends on the consts alone is computed again instead: it is moved out of the loop.
        """
        again = set(self.consts)
        copied: list[Node] = []
        for node in self.forward:
            if not draws(node) and all(value in again for value in node.inputs):
                again.update(node.outputs)
                copied.append(node)
        made = {v for node in self.forward for v in node.outputs} | set(self.inputs[: self.carries])
        read = [v for node in self.backward for v in node.inputs] + self.graph.outputs
        found = [v for v in dict.fromkeys(read) if v in made and v not in again]
        for value in found:
            if not value.type.is_bounded:
                raise UnsupportedOpError(
                    "gradient of a loop: sizes in its body must not depend on data. "
                    f"Received: {value!r}. Use a mask instead of a selection of rows."
                )
        wanted = {v for v in read if v in again}
        for node in reversed(copied):
            if wanted.intersection(node.outputs):
                wanted.update(node.inputs)
        self.again = [node for node in copied if wanted.intersection(node.outputs)]
        return found

    def save_residuals(self, b: Builder) -> list[Value]:
        """Gives the node an output for every residual, and returns these."""
        graph = Graph(self.body.name)
        mapping = {v: graph.add_input(v.name, v.type) for v in self.inputs}
        _copy(graph, self.forward, mapping)
        kept = {value: at for at, value in enumerate(self.outputs) if at >= self.carries}
        new = [value for value in self.residuals if value not in kept]
        graph.outputs = [mapping[value] for value in [*self.outputs, *new]]
        graph.prune()
        self.node.attrs = {**self.attrs, "body": graph}
        length: Size = self.attrs["length"]
        types = [v.type.with_shape((length, *v.type.shape)) for v in new]
        added = dict(zip(new, _add_outputs(b.graph, self.node, types)))
        outputs = self.node.outputs
        return [outputs[kept[v]] if v in kept else added[v] for v in self.residuals]

    def run_reversed(self, b: Builder, dys: Cotangents, residuals: list[Value]) -> Cotangents:
        """Emits the scan over the residuals, and returns the cotangents of the node's operands."""
        read = {v for node in [*self.backward, *self.again] for v in node.inputs}
        read.update(self.graph.outputs)
        at = dict(zip(self.inputs, self.node.inputs[len(self.node.inputs) - len(self.inputs) :]))
        seeds = list(zip(self.given, self.seeds))
        carries = [(v, self._cotangent(b, dys, i)) for i, v in seeds if i < self.carries]
        carries += [(s, zeros_like(b, at[v])) for s, v in zip(self.sums, self.of_consts)]
        xs = [(v, dys[i]) for i, v in seeds if i >= self.carries]
        xs += zip(self.residuals, residuals)
        xs += [(v, at[v]) for v in self.xs if v in read]
        consts = [(v, at[v]) for v in self.consts if v in read]
        graph = Graph(self.graph.name)
        mapping = {v: graph.add_input(v.name, v.type) for v, _ in [*carries, *xs, *consts]}
        _copy(graph, [*self.again, *self.backward], mapping)
        graph.outputs = [mapping[v] for v in self.graph.outputs]
        operands = [*self.node.inputs[: int(self.attrs["counted"])]]
        operands += [value for _, value in [*carries, *xs, *consts] if value is not None]
        attrs = {"body": graph, "carries": len(carries), "xs": len(xs)}
        attrs["reverse"] = not self.attrs["reverse"]
        found = b.multi("scan", *operands, **{**self.attrs, **attrs})
        made = dict(zip([*self.of_carries, *self.of_consts, *self.of_xs], found))
        missing = [None] * (len(self.node.inputs) - len(self.inputs))
        return [*missing, *(made.get(value) for value in self.inputs)]

    def _cotangent(self, b: Builder, dys: Cotangents, at: int) -> Value:
        dy = dys[at]
        return zeros_like(b, self.node.outputs[at]) if dy is None else dy


def _needed(graph: Graph, without: set[Node]) -> list[Node]:
    """Nodes that the graph's outputs depend on, in order, apart from some."""
    wanted, found = set(graph.outputs), []
    for node in reversed(graph.nodes):
        if node not in without and wanted.intersection(node.outputs):
            wanted.update(node.inputs)
            found.append(node)
    return found[::-1]


def _copy(graph: Graph, nodes: Sequence[Node], mapping: dict[Value, Value]) -> None:
    """Appends copies of nodes to a graph; `mapping` gets their outputs."""
    for node in nodes:
        types = [value.type for value in node.outputs]
        operands = [mapping[value] for value in node.inputs]
        made = graph.make_node(node.op, operands, dict(node.attrs), types, node.source)
        graph.nodes.append(made)
        mapping.update(zip(node.outputs, made.outputs))


def _add_outputs(graph: Graph, node: Node, types: Sequence[TensorType]) -> list[Value]:
    """Appends outputs to a node."""
    first = len(node.outputs)
    for at, type in enumerate(types, first):
        node.outputs.append(Value(graph.unique_name(node.op), type, node, at))
    return node.outputs[first:]
