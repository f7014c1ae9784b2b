"""Removes padding: only rows of real tokens are computed, with all sequences concatenated.

Before: `%h = matmul(%x [B S, H], %w)  %a = attention(%q, %k, %v, %mask)`; after: the same on rows
of x that are real [T, H], and `packed_attention` with the row where each sequence begins. Real
tokens are found in the batch (`StepGraph.packing`), by the mask that an attention adds to its
scores or by the weights that a loss is multiplied by.

The pass does not fire where padded positions can affect a variable or a result: padding_analysis.py
finds the nodes that keep rows independent, and what is summed over rows must be 0 at padded
positions, always or by a check of every batch. The pass runs after the fusion of attention and
before differentiation.

Letters: B sequences, S their padded length, T real tokens.
"""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from cerebras_tf.errors import PaddingError
from cerebras_tf.ir import Dim, Node, Shape, StepGraph, TensorType, Value, bound_of
from cerebras_tf.ir.dimensions import UNLIMITED
from cerebras_tf.ir.packing import (
    BIAS,
    FIRST,
    HIDDEN,
    HIDING,
    LIST,
    OFFSETS,
    POSITIONS,
    ROW_OF,
    ROWS,
    SEQUENCES,
    SPAN,
    WEIGHTS,
    ZERO,
    Packing,
    TokenSpace,
    feature_name,
)
from cerebras_tf.ir.step import RESULT
from cerebras_tf.kernels.registry import evaluate
from cerebras_tf.ops import Builder, lookup
from cerebras_tf.ops.sizes import counted, counts
from cerebras_tf.passes import padding_analysis
from cerebras_tf.passes.padding_analysis import (
    NOTHING,
    Fact,
    HostValues,
    PaddingAnalysis,
    Pads,
    refuse,
)


def remove_padding(
    step: StepGraph, restore: bool = False, optional: frozenset[str] = frozenset()
) -> Optional[str]:
    """Removes padding in place, if no number changes.

    Args:
        step: before differentiation.
        restore: whether the user requested it. Results of every token may then be returned although
            their values at padded positions are unknown: they are 0. Padding that no mask hides,
            only weights of a causal model's loss, is then removed, too.
        optional: names of results that are dropped if they would prevent padding removal.

    Returns:
        None if padding was removed, else the reason; the step is then unchanged. "" if it was not
        requested and there is no attention, or only weights show padding.
    """
    if not any(node.op == "attention" for node in step.graph.nodes):
        return padding_analysis.without_attention(step.graph, restore)
    reason = ""
    for lists in (True, False):
        try:
            facts = PaddingAnalysis(step, lists)
            if facts.only_weights and not restore:
                return ""
            emitter = _Emitter(step, facts, restore, optional)
            emitter.run()
        except PaddingError as error:
            reason = str(error)
            continue
        emitter.keep()
        return None
    return reason


class _Emitter:
    """Emits the packed nodes; the step does not change before `keep`."""

    def __init__(
        self, step: StepGraph, facts: PaddingAnalysis, restore: bool, optional: frozenset[str]
    ) -> None:
        self.step, self.facts, self.restore = step, facts, restore
        self._optional = [step.labels[RESULT, name] for name in optional & set(step.results)]
        self._dropped: set[str] = set()
        self._outputs: list[Value] = []
        self.packed: dict[Value, Value] = {}
        self.pads = Pads(facts)
        self.host = HostValues(step)
        self._graph = step.graph
        self._before = list(step.graph.nodes), list(step.graph.inputs)
        self._inputs = {node: list(node.inputs) for node in step.graph.nodes}
        self._memo: dict[tuple[Value, int, int], Value] = {}
        self._features: dict[str, Value] = {}
        self._spaces: dict[int, TokenSpace] = {}

    def run(self) -> None:
        """Emits all nodes, and restores the step's graph after an exception."""
        graph = self._graph
        nodes, graph.nodes = graph.nodes, []
        self.b = Builder(graph, evaluate)
        try:
            if not self.facts.streams:
                raise PaddingError("padding is not removed: no feature counts tokens")
            for number in range(len(self.facts.streams)):
                if self.facts.stream_of(number) == number:
                    self._spaces[number] = self._space(number)
            for node in nodes:
                self._node(node)
            names = {at: name for (_, name), at in self.step.labels.items()}
            for at, value in enumerate(graph.outputs):
                if at in self._optional and not self._can_return(value):
                    self._dropped.add(names[at])
                    value = self.b.constant(0)
                self._outputs.append(self._result(value))
        except BaseException:
            self.undo()
            raise

    def undo(self) -> None:
        """Restores the step's graph."""
        self._graph.nodes, self._graph.inputs = self._before
        for node, inputs in self._inputs.items():
            node.inputs = inputs

    @property
    def packing(self) -> Packing:
        """How the real tokens of a batch are found."""
        used = {feature.partition("/")[2].partition("/")[0] for feature in self._features}
        spaces = tuple(space for space in self._spaces.values() if space.name in used)
        return Packing(self.host.graph, spaces, tuple(self.host.checks))

    def keep(self) -> None:
        """Changes the step to the packed one."""
        graph, step = self._graph, self.step
        graph.outputs = self._outputs
        for name in self._dropped:
            del step.results[name]
        graph.prune()
        step.features.update(self._features)
        step.packing = self.packing

    # Token spaces.

    def _space(self, number: int) -> TokenSpace:
        stream, name = self.facts.streams[number], str(len(self._spaces))
        if len(stream.masks) > 1:
            raise PaddingError("padding is not removed: two masks hide keys among the same tokens")
        if stream.masks:
            masks = tuple(self.host.output(mask) for mask in stream.masks[0])
            return TokenSpace(name, stream.dims, BIAS, masks)
        if not stream.weights:
            what = "a list of tokens" if stream.listed else "tokens"
            raise PaddingError(
                f"padding is not removed: nothing distinguishes real {what} from padding"
            )
        values = tuple(dict.fromkeys(self.host.output(value) for value, _ in stream.weights))
        return TokenSpace(name, stream.dims, WEIGHTS if stream.causal else LIST, values)

    def _space_of(self, fact: Fact) -> TokenSpace:
        return self._spaces[self.facts.stream_of(fact.stream)]

    def _tokens(self, space: TokenSpace) -> Dim:
        size = space.dims[0] * space.dims[1]
        most = bound_of(size)
        return Dim.symbol(space.symbol, most, UNLIMITED if isinstance(size, Dim) else most)

    def _feature(self, space: TokenSpace, kind: str) -> Value:
        name = feature_name(space.name, kind)
        if name not in self._features:
            batch, length = space.dims
            size = {OFFSETS: batch + 1, ROW_OF: batch * length}.get(kind)
            shape = (self._tokens(space) if size is None else size,)
            self._features[name] = self._graph.add_input(name, TensorType("int32", shape))
        return self._features[name]

    def _resized(self, shape: Shape, fact: Fact) -> Shape:
        """The packed shape of a padded one: [1, .., T, ..] or [T, ...]."""
        tokens = self._tokens(self._space_of(fact))
        if not fact.layout:
            return (tokens, *shape[1:])
        return (1, *shape[1 : fact.layout], tokens, *shape[fact.layout + 1 :])

    # Nodes.

    def _node(self, node: Node) -> None:
        b = self.b
        node.inputs = [b.replaced.get(value, value) for value in node.inputs]
        b.source, b.layer, b.direction = node.source, node.layer, node.direction
        plan = self.facts.plan.get(node)
        if plan is None:
            b.graph.nodes.append(node)
            return
        made = {
            padding_analysis.BY_ROWS: self._by_rows,
            padding_analysis.RESHAPED: self._reshaped,
            padding_analysis.TRANSPOSED: self._transposed,
            padding_analysis.ATTENTION: self._attention,
            padding_analysis.SUMMED: self._summed,
            padding_analysis.BY_SEQUENCE: self._by_sequence,
            padding_analysis.PICKED: self._picked,
            padding_analysis.LISTED: self._listed,
            padding_analysis.SOFTMAX: self._softmax,
            padding_analysis.GRADIENT: self._gradient,
            padding_analysis.SELECTED: self._selected,
        }[plan](node)
        for value, new in zip(node.outputs, made):
            if value in self.facts.rows:
                if new.shape != self._resized(value.shape, self.facts.rows[value]):
                    refuse(node, "has a size that cannot be inferred")
                self.packed[value] = new
            else:
                if new.type != value.type:
                    refuse(node, "has a size that cannot be inferred")
                b.replaced[value] = new

    def _by_rows(self, node: Node) -> list[Value]:
        fact = next(self.facts.rows[v] for v in node.outputs if v in self.facts.rows)
        operands = self._operands(node, fact)
        attrs = {key: self._resized_attr(node, key, fact) for key in node.attrs}
        made = self.b.multi(node.op, *operands, **attrs)
        for value in node.outputs:
            self.pads.held[value] = self.pads.of(node, fact)
        return made

    def _operands(self, node: Node, fact: Fact) -> list[Value]:
        ruled = self.facts.ruled[node]
        rank = max(len(value.shape) for value in (*node.outputs, *node.inputs))
        operands = []
        for i, value in enumerate(node.inputs):
            if i in ruled.operands:
                value = self._rows(node, value, fact)
            elif i in ruled.spread:
                value = self._spread(node, value, fact, rank)
            operands.append(value)
        return operands

    def _resized_attr(self, node: Node, key: str, fact: Fact) -> Any:
        held = node.attrs[key]
        sizes = key in ("shape", "sizes") and isinstance(held, tuple)
        return self._resized(held, fact) if sizes else held

    def _reshaped(self, node: Node) -> list[Value]:
        fact = self.facts.rows[node.output]
        self.pads.held[node.output] = self.pads.get(node.inputs[0])
        shape = self._resized(node.output.shape, fact)
        return [self.b.op("reshape", self.packed[node.inputs[0]], shape=shape)]

    def _transposed(self, node: Node) -> list[Value]:
        self.pads.held[node.output] = self.pads.get(node.inputs[0])
        return [self.b.op("transpose", self.packed[node.inputs[0]], **node.attrs)]

    def _selected(self, node: Node) -> list[Value]:
        self.pads.held[node.output] = NOTHING
        return [self.packed[node.inputs[1]]]

    def _attention(self, node: Node) -> list[Value]:
        b, drops = self.b, "rate" in node.attrs
        facts = [self.facts.rows[value] for value in node.inputs[:2]]
        spaces = [self._space_of(fact) for fact in facts]
        if spaces[1].kind == LIST or (spaces[0].kind == LIST and drops):
            refuse(node, "attends to a list of tokens")
        split = self.facts.causal.get(node)
        if split is not None and split.window is not None:
            self.host.check_spans(SPAN, spaces[1], split.window, node.source)
        if drops:  # numbers are drawn by position, which is the number of a token
            for space in spaces:
                self.host.check_spans(FIRST, space, 0, node.source)
        tensors = [self._flat(self.packed[value]) for value in node.inputs[:3]]
        offsets = [self._feature(space, OFFSETS) for space in spaces]
        lengths = tuple(space.dims[1] for space in spaces)
        drawn = node.inputs[-2:] if drops else []
        attrs = {**node.attrs, "lengths": lengths}
        attrs["causal"] = attrs["causal"] or split is not None
        out, lse = b.multi("packed_attention", *tensors, *offsets, *drawn, **attrs)
        # Nothing but the op's own gradient reads the second output.
        return [b.op("reshape", out, shape=(1, *out.shape)), lse][:1]

    def _flat(self, packed: Value) -> Value:
        """[1, T, ...] as [T, ...]."""
        return self.b.op("reshape", packed, shape=packed.shape[1:])

    def _summed(self, node: Node) -> list[Value]:
        having = [value for value in node.inputs if value in self.facts.rows]
        fact = self.facts.rows[having[0]]
        self._need_zeros(node, fact)
        if node in self.facts.ruled:
            return self.b.multi(node.op, *self._operands(node, fact), **node.attrs)
        total = self.b.op("sum", self.packed[having[0]], **node.attrs)
        return [self._averaged(node, total)]

    def _averaged(self, node: Node, total: Value) -> Value:
        """The sum, or for a mean the sum over the count of all positions, including padded ones."""
        if node.op != "mean":
            return total
        shape = node.inputs[0].shape
        size = TensorType("bool", tuple(shape[axis] for axis in node.attrs["axes"])).size
        count = self.b.op("cast", counts(self.b, size, "int64"), dtype=total.dtype)
        return self.b.op("div", total, count)

    def _by_sequence(self, node: Node) -> list[Value]:
        (value,) = node.inputs
        fact = self.facts.rows[value]
        self._need_zeros(node, fact)
        space = self._space_of(fact)
        ids, rows = self._feature(space, SEQUENCES), self._flat(self.packed[value])
        total = self.b.op("scatter_add_rows", ids, rows, num_rows=space.dims[0])
        total = self.b.op("reshape", total, shape=node.output.shape)
        return [self._averaged(node, total)]

    def _picked(self, node: Node) -> list[Value]:
        """Position c of every sequence: [B, 1, ...]."""
        b, value = self.b, node.inputs[0]
        space, at = self._space_of(self.facts.rows[value]), node.attrs["starts"][1]
        position = b.constant([at], "int32")
        self.host.check_positions(space, position, 1, node.source)
        places = self._numbers(space, self._rows_at(space, position))
        rows = b.op("gather", self._flat(self.packed[value]), places, axis=0, batch_dims=0)
        rows = b.op("reshape", rows, shape=(value.shape[0], 1, *value.shape[2:]))
        attrs = {**node.attrs, "starts": (0, 0, *node.attrs["starts"][2:])}
        return [b.op("slice", rows, **attrs) if rows.type != node.output.type else rows]

    def _rows_at(self, space: TokenSpace, positions: Value) -> Value:
        """Rows b S + s of positions [B, ...] in each sequence."""
        firsts = counted(self.b, space.dims[0], space.dims[1], positions.dtype)
        shape = (space.dims[0], *(1,) * (positions.type.rank - 1))
        firsts = self.b.op("reshape", firsts, shape=shape)
        return self.b.op("add", positions, firsts)

    def _numbers(self, space: TokenSpace, places: Value) -> Value:
        """Numbers of the real tokens at rows [P]."""
        return self.b.op("gather", self._feature(space, ROW_OF), places, axis=0, batch_dims=0)

    def _listed(self, node: Node) -> list[Value]:
        """Rows at positions that are data, or those of them that the list holds."""
        b, value = self.b, node.inputs[0]
        if node.op == "slice":
            start, count = node.attrs["starts"][1], node.attrs["sizes"][1]
            indices = b.op("reshape", counted(b, count, 1, "int32", start), shape=(1, count))
        else:
            indices = node.inputs[1]
        fact = self.facts.rows[value]
        space = self._space_of(fact)
        flat = self._rows_at(space, indices) if fact.layout else indices
        flat = b.op("reshape", flat, shape=(flat.type.size,))
        own = self.facts.rows.get(node.output)
        if own is not None:
            chosen = self._feature(self._space_of(own), ROWS)
            flat = b.op("gather", flat, chosen, axis=0, batch_dims=0)
        places = self._numbers(space, flat)
        packed = self.packed[value]
        rows = self._flat(packed) if fact.layout else packed
        result = b.op("gather", rows, places, axis=0, batch_dims=0)
        if own is None:
            self.host.check_positions(space, indices, fact.layout, node.source)
            return [b.op("reshape", result, shape=node.output.shape)]
        self.host.check_positions(space, indices, fact.layout, node.source, self._space_of(own))
        self.pads.held[node.output] = NOTHING
        return [b.op("reshape", result, shape=self._resized(node.output.shape, own))]

    def _softmax(self, node: Node) -> list[Value]:
        """A softmax over the padded tokens of a sequence: hidden ones contribute 0."""
        value = node.inputs[0]
        space = self._space_of(self.facts.rows[value])
        pad, fill = self.pads.get(value), 2 * HIDING
        if pad.value is not None and pad.value <= HIDING:
            fill = pad.value.item()
            for check in pad.checks:
                self.host.check_value(ZERO, space, *check)
        elif pad.hiding is not None:
            self.host.check_value(HIDDEN, space, *pad.hiding)
        else:
            refuse(node, "is a softmax over positions that no mask hides")
        if node.op == "sparse_softmax_xent":
            self.host.check_positions(space, node.inputs[1], 1, node.source)
        logits = self._unpack(value, fill)
        return self.b.multi(node.op, logits, *node.inputs[1:], **node.attrs)

    def _gradient(self, node: Node) -> list[Value]:
        """Gradients by rows, padded with 0: the loss does not depend on padding."""
        operands = [self.packed.get(value, value) for value in node.inputs]
        made = self.b.multi("gradient", *operands, **node.attrs)
        first = sum(node.attrs["dys"]) + node.attrs["ys"]
        return [
            new if value not in self.facts.rows else self._padded(value, new, 0.0)
            for value, new in zip(node.inputs[first:], made)
        ]

    # Rows of operands.

    def _rows(self, node: Node, value: Value, fact: Fact) -> Value:
        """Packed rows of a value; of a padded value they are gathered or computed."""
        if value in self.packed:
            return self.packed[value]
        key = value, self.facts.stream_of(fact.stream), fact.layout
        if key not in self._memo:
            self._memo[key] = self._rows_of_padded(node, value, fact)
        return self._memo[key]

    def _rows_of_padded(self, node: Node, value: Value, fact: Fact) -> Value:
        b, made, space = self.b, value.node, self._space_of(fact)
        rows = self._feature(space, ROWS)
        if made is not None and made.op == "random_uniform" and fact.layout < 2:
            attrs = {**made.attrs, "axes": fact.layout + 1}
            return b.op("random_uniform_rows", rows, *made.inputs, **attrs)
        if made is not None and value not in self.facts.free and lookup(made.op).elementwise:
            ruled = lookup(made.op).rows(made, fact.layout + 1)
            if ruled is not None and not ruled.spread:
                operands = [
                    self._rows(node, item, fact) if i in ruled.operands else item
                    for i, item in enumerate(made.inputs)
                ]
                return b.op(made.op, *operands, **made.attrs)
        if any(dim != 1 for dim in value.shape[1 : fact.layout]):
            refuse(node, "reads rows of a value with axes in another order")
        rest = value.shape[fact.layout + 1 :]
        flat = b.op("reshape", value, shape=(space.dims[0] * space.dims[1], *rest))
        taken = b.op("gather", flat, rows, axis=0, batch_dims=0)
        return b.op("reshape", taken, shape=self._resized(value.shape, fact))

    def _spread(self, node: Node, value: Value, fact: Fact, rank: int) -> Value:
        """The rows of an operand that is broadcast along some of the row axes."""
        b, space, layout = self.b, self._space_of(fact), fact.layout
        shape = (1,) * (rank - value.type.rank) + value.shape
        if not layout or any(dim != 1 for dim in shape[1:layout]):
            refuse(node, "reads padded rows")
        first, second = shape[0], shape[layout]
        if first == 1 and second == 1:
            return value
        if (first, second) not in ((1, space.dims[1]), (space.dims[0], 1), space.dims):
            refuse(node, "reads padded rows")
        if (first, second) == space.dims:
            kind = ROWS
        else:
            kind = POSITIONS if first == 1 else SEQUENCES
        rest = shape[layout + 1 :]
        flat = b.op("reshape", value, shape=(-1, *rest))
        taken = b.op("gather", flat, self._feature(space, kind), axis=0, batch_dims=0)
        return b.op("reshape", taken, shape=(*(1,) * layout, self._tokens(space), *rest))

    def _need_zeros(self, node: Node, fact: Fact) -> None:
        """Requires that padding adds 0 to a sum over rows, by checks if needed."""
        space = self._space_of(fact)
        if node in self.facts.ruled:
            zero = self.pads.zero(node, fact)
        else:
            zero = self.pads.get(node.inputs[0])
            if zero.value is None or zero.value.any():
                zero = None
        if zero is None:
            what = "is a mean over" if node.op == "mean" else "sums"
            refuse(
                node,
                f"{what} positions, padded ones too. Multiply by the mask and divide by its sum",
            )
        for check in zero.checks:
            self.host.check_value(ZERO, space, *check)

    # Results.

    def _can_return(self, value: Value) -> bool:
        if value not in self.facts.rows or self.restore:
            return True
        return self.pads.get(value).value is not None

    def _result(self, value: Value) -> Value:
        if value not in self.facts.rows:
            return self.b.replaced.get(value, value)
        pad, node = self.pads.get(value), value.node
        assert node is not None
        if not self._can_return(value):
            refuse(node, "returns its values at padded positions")
        if pad.value is None:
            return self._unpack(value, 0.0)
        for check in pad.checks:
            self.host.check_value(ZERO, self._space_of(self.facts.rows[value]), *check)
        return self._unpack(value, pad.value.item())

    def _unpack(self, value: Value, fill: float) -> Value:
        return self._padded(value, self.packed[value], fill)

    def _padded(self, value: Value, packed: Value, fill: float) -> Value:
        """As _unpack, for other packed rows at the same positions."""
        b, fact, node = self.b, self.facts.rows[value], value.node
        space = self._space_of(fact)
        if fact.layout > 1:
            assert node is not None
            refuse(node, "returns rows with axes in another order")
        rest = value.shape[fact.layout + 1 :]
        shape = (space.dims[0] * space.dims[1], *rest)
        table = b.constant(np.asarray(fill, value.type.numpy_dtype), value.dtype)
        table = b.op("broadcast_to", table, shape=shape)
        rows = self._flat(packed) if fact.layout else packed
        whole = b.op("rows_update", table, self._feature(space, ROWS), rows)
        return b.op("reshape", whole, shape=value.shape)
