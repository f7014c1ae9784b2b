"""Moves work out of loops: one large product instead of a small one in every iteration.

Before: `scan` whose body computes `x_t W + h V`, adds `x_t^T dz_t` to a carry and returns
`dz_t W^T`; after: `X W` in front of the scan, its slices are xs; dz is a y, and `X^T dZ` and
`dZ W^T` follow the scan. A product of a concatenation of slices and carries is split. What depends
on consts alone moves in front of the scan, and outputs that nothing reads are dropped.

The pass runs before differentiation, for the products of the slices, and after it, for the rest.
It does not fire in a `while`, nor for what draws random numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Optional

from cerebras_tf.ir import Graph, Node, Shape, TensorType, Value
from cerebras_tf.ir.binding import copy_graph
from cerebras_tf.ops import Builder, draws, lookup
from cerebras_tf.ops.counted_loops import is_zero
from cerebras_tf.ops.loops import Operands
from cerebras_tf.ops.shape import reshape
from cerebras_tf.passes.merge_common import merge_common
from cerebras_tf.passes.rewrite import rewrite


def hoist_loops(graph: Graph) -> None:
    """Moves work out of the scans of a graph in place, inner ones first."""
    read = {value for node in graph.nodes for value in node.inputs} | set(graph.outputs)

    def rule(b: Builder, node: Node) -> Optional[list[Value]]:
        for inner in node.subgraphs.values():
            hoist_loops(inner)
        if node.op != "scan":
            return None
        return _Scan(b, node, read).run()

    rewrite(graph, rule)


class _Scan:
    """A scan while it is changed; what follows it is emitted after the new one."""

    def __init__(self, b: Builder, node: Node, read: set[Value]) -> None:
        self.b, self.node = b, node
        self.body: Graph = copy_graph(node.attrs["body"], lambda part: part)
        merge_common(self.body)
        operands = Operands.of(node.attrs)
        self.length = node.attrs["length"]
        _, carries, xs, consts = operands.split(node.inputs)
        self.count = node.inputs[: operands.first]
        # Outer values of the body's inputs.
        inputs = iter(self.body.inputs)
        self.starts: dict[Value, Value] = {next(inputs): value for value in carries}
        self.xs: dict[Value, Value] = {next(inputs): value for value in xs}
        self.consts: dict[Value, Value] = {next(inputs): value for value in consts}
        outputs = self.body.outputs
        self.nexts = dict(zip(self.starts, outputs))
        given = list(zip(node.outputs, [*self.starts, *outputs[operands.carries :]]))
        # For outputs that something reads: a carry, or what is returned as a y.
        self.wanted = {output: value for output, value in given if output in read}
        self.of_carries = set(node.outputs[: operands.carries])
        # How outputs are made from those of the new scan, in place of being one.
        self.after: dict[Value, Callable[[Builder], Value]] = {}
        self.stacked: dict[Value, None] = {}  # further values of the body that are ys
        self.ys: dict[Value, Optional[Value]] = {}  # of the body -> outputs of the new scan

    def run(self) -> Optional[list[Value]]:
        before = len(self.body.nodes), len(self.node.outputs)
        self._drop_dead()
        changed = before != (len(self.body.nodes), len(self.wanted))
        for step in (self._invariants, self._split_products, self._products_of_slices):
            changed |= step()
        changed |= self._sums()
        changed |= self._products_of_results()
        return self._emit() if changed else None

    # The body.

    def _set_outputs(self) -> None:
        """The values that the body must compute."""
        ys = [
            value
            for output, value in self.wanted.items()
            if output not in self.of_carries and output not in self.after
        ]
        self.ys = dict.fromkeys([*ys, *self.stacked])
        self.body.outputs = [*self.nexts.values(), *self.ys]

    def _drop_dead(self) -> None:
        """Drops carries that neither an output nor another value that is wanted depends on."""
        live = {value for output, value in self.wanted.items() if output in self.of_carries}
        while True:
            roots = [self.nexts[carry] for carry in live]
            roots += [v for o, v in self.wanted.items() if o not in self.of_carries]
            needed = _before(roots) & set(self.starts)
            if needed <= live:
                break
            live |= needed
        self.starts = {carry: value for carry, value in self.starts.items() if carry in live}
        self.nexts = {carry: value for carry, value in self.nexts.items() if carry in live}
        self._set_outputs()
        self.body.prune()

    def _replace(self, old: Value, new: Value) -> None:
        self.body.replace({old: new})
        self.nexts = {c: new if v is old else v for c, v in self.nexts.items()}
        self.wanted = {
            o: new if v is old and o not in self.of_carries else v for o, v in self.wanted.items()
        }
        self._set_outputs()

    def _as_input(self, old: Value, outer: Value, table: dict[Value, Value]) -> None:
        """Replaces a value of the body by an input."""
        new = self.body.add_input(old.name, old.type)
        table[new] = outer
        self._replace(old, new)

    def _invariants(self) -> bool:
        """Moves what depends on consts alone in front of the scan."""
        changed = False
        constant = set[Value]()
        for node in list(self.body.nodes):
            if node.op == "constant":
                constant.update(node.outputs)
                continue
            fixed = all(v in self.consts or v in constant for v in node.inputs)
            depends = any(v in self.consts for v in node.inputs)
            if not (fixed and depends) or draws(node) or lookup(node.op).repeats:
                continue
            operands = [self._outside(value) for value in node.inputs]
            found = self.b.multi(node.op, *operands, **node.attrs)
            for old, new in zip(node.outputs, found):
                self._as_input(old, new, self.consts)
            self.body.nodes.remove(node)
            changed = True
        return changed

    def _outside(self, value: Value) -> Value:
        if value in self.consts:
            return self.consts[value]
        assert value.constant is not None
        return self.b.constant(value.constant, value.dtype)

    def _split_products(self) -> bool:
        """concat(x_t, h) W = x_t W' + h W''."""
        changed = False
        for node in list(self.body.nodes):
            if not _is_product(node) or node.inputs[1] not in self.consts:
                continue
            joined, w = node.inputs[0].node, node.inputs[1]
            if joined is None or joined.op != "concat" or joined.attrs["axis"] != 1:
                continue
            if node.attrs.get("transpose_b") or len({v in self.xs for v in joined.inputs}) == 1:
                continue
            if not all(isinstance(v.shape[1], int) for v in joined.inputs):
                continue
            total, first = None, 0
            at = self.body.nodes.index(node)
            tail = self.body.nodes[at:]
            del self.body.nodes[at:]
            inner = Builder(self.body)
            inner.source = node.source
            for part in joined.inputs:
                width = part.shape[1]
                assert isinstance(width, int)
                cut = {"starts": (first, 0), "sizes": (width, w.shape[1]), "strides": (1, 1)}
                rows = self.body.add_input(w.name, w.type.with_shape((width, w.shape[1])))
                self.consts[rows] = self.b.op("slice", self.consts[w], **cut)
                product = inner.op("matmul", part, rows, **node.attrs)
                total = product if total is None else inner.op("add", total, product)
                first += width
            self.body.nodes += tail
            assert total is not None
            self._replace(node.output, total)
            self.body.prune()
            changed = True
        return changed

    def _products_of_slices(self) -> bool:
        """x_t W is a slice of X W."""
        changed = False
        for node in list(self.body.nodes):
            if _is_product(node) and node.inputs[0] in self.xs and node.inputs[1] in self.consts:
                x, w = self.xs[node.inputs[0]], self.consts[node.inputs[1]]
                with_source(self.b, node)
                self._as_input(node.output, self.b.op("matmul", x, w, **node.attrs), self.xs)
                self.body.nodes.remove(node)
                changed = True
        return changed

    # What follows.

    def _sums(self) -> bool:
        """A carry that only grows by x_t^T dz_t, or by sums over dz_t, is one product or sum."""
        changed = False
        for carry in list(self.starts):
            outputs = [o for o, v in self.wanted.items() if v is carry and o in self.of_carries]
            node = self.nexts[carry].node
            uses = [x for x in self.body.nodes for v in x.inputs if v is carry]
            if node is None or node.op != "add" or uses != [node] or len(outputs) != 1:
                continue
            if self.body.outputs.count(carry) or self.body.outputs.count(node.output) != 1:
                continue
            left, right = node.inputs
            summand = right if left is carry else left
            if summand.type != carry.type or self._is_read_but_by(summand, node):
                continue
            make = self._sum_of(summand)
            if make is None:
                continue
            start = self.starts.pop(carry)
            del self.nexts[carry]

            def total(
                b: Builder, make: Callable[[Builder], Value] = make, start: Value = start
            ) -> Value:
                found = make(b)
                return found if is_zero(start) else b.op("add", start, found)

            self.after[outputs[0]] = total
            changed = True
            self._set_outputs()
            self.body.prune()
        return changed

    def _is_read_but_by(self, value: Value, node: Node) -> bool:
        others = [x for x in self.body.nodes for v in x.inputs if v is value and x is not node]
        return bool(others) or value in self.body.outputs

    def _sum_of(self, value: Value) -> Optional[Callable[[Builder], Value]]:
        """How the sum of a value over all iterations is made; None if it is not cheaper so."""
        node = value.node
        if node is None or not value.type.is_bounded:
            return None
        if node.op == "matmul" and node.attrs.get("transpose_a") and value.type.rank == 2:
            pair = [self._stack(v) for v in node.inputs]
            if node.attrs.get("transpose_b") or any(v.type.rank != 2 for v in node.inputs):
                return None
            if any(v in self.consts or v.constant is not None for v in node.inputs):
                return None
            first, second = pair

            def product(b: Builder) -> Value:
                with_source(b, node)
                a, c = (_rows(b, stack()) for stack in (first, second))
                return b.op("matmul", a, c, **node.attrs)

            return product
        if node.op == "reshape":
            inner = self._sum_of(node.inputs[0])
            return None if inner is None else lambda b: reshape(b, inner(b), value.shape)
        if node.op == "sum" and node.inputs[0] not in self.consts:
            summed = node.inputs[0]
            stack = self._stack(summed)
            axes = (0, *(axis + 1 for axis in node.attrs["axes"]))

            def total(b: Builder) -> Value:
                whole = reshape(b, stack(), (self.length, *summed.shape))
                found = b.op("sum", whole, axes=axes, keepdims=False)
                return reshape(b, found, value.shape)

            return total
        return None

    def _stack(self, value: Value) -> Callable[[], Value]:
        """Where the values of all iterations are, once the new scan is emitted."""
        while value.node is not None and value.node.op == "reshape":
            source = value.node.inputs[0]
            if not source.type.rank or source.shape[-1:] != value.shape[-1:]:
                break
            value = source
        if value in self.xs and not self.count:
            outer = self.xs[value]
            return lambda: outer
        self.stacked[value] = None

        def made() -> Value:
            found = self.ys[value]
            assert found is not None
            return found

        return made

    def _products_of_results(self) -> bool:
        """dz_t W^T that is only returned is a slice of dZ W^T."""
        changed = False
        for output, value in list(self.wanted.items()):
            node = value.node
            if output in self.of_carries or node is None or not _is_product(node):
                continue
            a, w = node.inputs
            if w not in self.consts or a in self.consts or a.constant is not None:
                continue
            uses = [x for x in self.body.nodes for v in x.inputs if v is value]
            if uses or self.body.outputs.count(value) != 1:
                continue
            if output in self.after:
                continue
            stack, outer = self._stack(a), self.consts[w]
            shape: Shape = (self.length, *value.shape)

            def product(
                b: Builder,
                stack: Callable[[], Value] = stack,
                outer: Value = outer,
                node: Node = node,
                shape: Shape = shape,
            ) -> Value:
                with_source(b, node)
                return reshape(b, b.op("matmul", stack(), outer, **node.attrs), shape)

            self.after[output] = product
            self._set_outputs()
            self.body.prune()
            changed = True
        return changed

    def _emit(self) -> list[Value]:
        self._set_outputs()
        self.body.prune()
        read = {v for node in self.body.nodes for v in node.inputs} | set(self.body.outputs)
        xs = {inner: outer for inner, outer in self.xs.items() if inner in read}
        consts = {inner: outer for inner, outer in self.consts.items() if inner in read}
        self.body.inputs = [*self.starts, *xs, *consts]
        attrs = {"body": self.body, "carries": len(self.starts), "xs": len(xs)}
        b = self.b
        with_source(b, self.node)
        found: list[Value] = []
        if self.body.outputs:
            operands = [*self.count, *self.starts.values(), *xs.values(), *consts.values()]
            found = b.multi("scan", *operands, **{**self.node.attrs, **attrs})
        carries = dict(zip(self.starts, found))
        self.ys = dict(zip(self.ys, found[len(carries) :]))
        results = []
        for output in self.node.outputs:
            if output in self.after:
                results.append(self.after[output](b))
                continue
            value = self.wanted.get(output)
            table = carries if output in self.of_carries else self.ys
            made = None if value is None else table[value]
            results.append(self._nothing(output.type) if made is None else made)
        return results

    def _nothing(self, type: TensorType) -> Value:
        """For an output that nothing reads."""
        return self.b.op("broadcast_to", self.b.constant(0, type.dtype), shape=type.shape)


def with_source(b: Builder, node: Node) -> None:
    """Emits with the name of a node."""
    b.source = node.source or b.source


def _is_product(node: Node) -> bool:
    """Whether a node is a product of two matrices, or of rows with a matrix."""
    if node.op != "matmul" or node.attrs.get("transpose_a"):
        return False
    return node.inputs[1].type.rank == 2 and node.output.type.is_bounded


def _rows(b: Builder, x: Value) -> Value:
    """All axes but the last as one."""
    return reshape(b, x, (x.type.with_shape(x.shape[:-1]).size, x.shape[-1]))


def _before(values: list[Value]) -> set[Value]:
    """Values that some depend on, and these."""
    found: set[Value] = set()
    stack = list(values)
    while stack:
        value = stack.pop()
        if value not in found:
            found.add(value)
            stack.extend(value.node.inputs if value.node is not None else ())
    return found
