"""Finds the values of a forward graph that have rows for tokens, and their padded positions.

A value has rows if an axis (or two) counts the tokens of a batch and each row depends on the same
rows of other values: real tokens then do not depend on padded positions. Rows begin where features
are combined with variables (embeddings). A stream is a set of rows with a common origin, or that
are combined. A node that mixes rows in a way that is not known here is refused.

Letters: B sequences, S their padded length. The layout of rows is the axis that counts S, the first
axis counting B; 0 if the first axis counts both, [B S, ...].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn, Optional

import numpy as np

from cerebras_tf.errors import PaddingError
from cerebras_tf.ir import Array, Graph, Node, Shape, Size, StepGraph, TensorType, Value
from cerebras_tf.ir.packing import REAL, Check, TokenSpace
from cerebras_tf.kernels.registry import evaluate
from cerebras_tf.ops import draws, lookup
from cerebras_tf.ops.rows import Rows
from cerebras_tf.passes.causal_mask import CausalMask, narrowed, split_causal

Dims = tuple[Size, Size]

# How a node that reads rows is rewritten.
BY_ROWS = "by rows"  # the same op on packed rows
RESHAPED = "reshaped"  # rows in another shape
TRANSPOSED = "transposed"  # rows with axes in another order
ATTENTION = "attention"  # sequence by sequence
SUMMED = "summed"  # a sum over all rows, to which padding adds 0
BY_SEQUENCE = "by sequence"  # a sum for each sequence, to which padding adds 0
PICKED = "picked"  # one row of each sequence, at a constant position
LISTED = "listed"  # rows at positions that are data
GRADIENT = "gradient"  # a gradient by rows, which is 0 for padding
SOFTMAX = "softmax"  # over the tokens of each sequence, padding hidden by a mask
SELECTED = "selected"  # the second operand of a select: its condition is True for real tokens


class Fact(NamedTuple):
    """Rows of a value: their stream, and their layout."""

    stream: int
    layout: int


@dataclass
class Stream:
    """Rows with a common origin, or that are combined.

    Attributes:
        dims: B and S.
        masks: masks of attention that hide keys among these rows: each a bias, or bool values
            that are all True for visible keys.
        weights: values of features that rows are multiplied by, one number per row.
        causal: whether a causal attention reads them.
        listed: whether they are gathered from another stream.
    """

    dims: Dims
    masks: list[tuple[Value, ...]] = field(default_factory=list)
    weights: list[tuple[Value, int]] = field(default_factory=list)
    causal: bool = False
    listed: bool = False


def refuse(node: Node, reason: str) -> NoReturn:
    """Raises PaddingError for the node that prevents padding removal."""
    raise PaddingError(f"padding is not removed: {node.op} ('{node.source}') {reason}.")


def _require_sources(node: Node) -> None:
    """Refuses gradients by values other than variables, features and what is gathered from them.

    Gradients by intermediate values may be nonzero at padded positions.
    """
    first = sum(node.attrs["dys"]) + node.attrs["ys"]
    for value in node.inputs[first:]:
        maker = value.node
        while maker is not None and maker.op in ("identity", "gather"):
            maker = maker.inputs[0].node
        if maker is not None:
            refuse(node, "differentiates by a computed value")


class PaddingAnalysis:
    """Rows of a graph before differentiation.

    Attributes:
        rows: for every value that has rows, its Fact.
        plan: for every node that reads or makes rows, how it is rewritten.
        ruled: for nodes that are computed by rows, the Rows of their op.
        causal: for attentions whose bias is causal and may hide more keys, its parts.
        free: values that depend on features and constants only.
        streams: all streams; see `stream_of` for those that were united.
    """

    def __init__(self, step: StepGraph, lists: bool) -> None:
        """Analyses a step.

        Args:
            lists: whether rows gathered at positions that are data become a stream of their own.

        Raises:
            PaddingError: a node mixes rows.
        """
        self.rows: dict[Value, Fact] = {}
        self.plan: dict[Node, str] = {}
        self.ruled: dict[Node, Rows] = {}
        self.causal: dict[Node, CausalMask] = {}
        # The batch's features, without the global step and seeds.
        self.free: set[Value] = {
            value
            for name, value in step.features.items()
            if value.type.rank and name not in step.draws
        }
        self.streams: list[Stream] = []
        self._parents: list[int] = []
        self._lists = lists
        self._unknown: dict[
            Value, Node
        ] = {}  # depends on rows, but neither has rows nor is complete
        self._dims = _token_dims(step)
        if self._dims:
            for node in step.graph.nodes:
                if node.op == "gradient":
                    _require_sources(node)
                self._visit(node)

    # Streams.

    @property
    def only_weights(self) -> bool:
        """Whether only weights of the loss show the padding of some causal rows."""
        roots = {self.stream_of(number) for number in range(len(self.streams))}
        return any(self.streams[i].causal and not self.streams[i].masks for i in roots)

    def stream_of(self, number: int) -> int:
        """The number of the stream that a stream was united with."""
        while self._parents[number] != number:
            number = self._parents[number]
        return number

    def _new_stream(self, dims: Dims, listed: bool = False) -> int:
        self.streams.append(Stream(dims, listed=listed))
        self._parents.append(len(self._parents))
        return len(self._parents) - 1

    def _unite(self, node: Node, first: int, second: int) -> int:
        first, second = self.stream_of(first), self.stream_of(second)
        if first == second:
            return first
        one, other = self.streams[first], self.streams[second]
        if one.dims != other.dims or one.listed != other.listed:
            refuse(node, "combines tokens of different sequences")
        for mask in other.masks:
            if mask not in one.masks:
                one.masks.append(mask)
        one.weights.extend(other.weights)
        one.causal = one.causal or other.causal
        self._parents[second] = first
        return first

    # Nodes.

    def _visit(self, node: Node) -> None:
        for value in node.inputs:
            if value in self._unknown:
                refuse(self._unknown[value], "has an output that mixes rows")
        having = [value for value in node.inputs if value in self.rows]
        if having:
            self._read(node, having)
            return
        if all(value in self.free for value in node.inputs) and not draws(node):
            if not lookup(node.op).structure and all(v.type.is_bounded for v in node.outputs):
                self.free.update(node.outputs)
            return
        self._begin_rows(node)

    def _begin_rows(self, node: Node) -> None:
        """Rows begin where features [B, S, ...] are combined with variables."""
        if not any(value in self.free and value.type.rank for value in node.inputs):
            return
        for i, value in enumerate(node.inputs):
            if value not in self.free or value.constant is not None:
                continue
            for dims in self._dims:
                layout = _layout_of(value.shape, dims)
                ruled = None if layout is None else lookup(node.op).rows(node, layout + 1)
                if layout is None or ruled is None or i not in ruled.operands or ruled.sums:
                    continue
                if any(node.inputs[at] not in self.free for at in ruled.operands):
                    continue  # these rows are computed in full
                stream = self._new_stream(dims)
                self._set_rows(node, ruled, Fact(stream, layout))
                return

    def _set_rows(self, node: Node, ruled: Rows, fact: Fact) -> None:
        self.plan[node], self.ruled[node] = BY_ROWS, ruled
        for i, value in enumerate(node.outputs):
            if i in ruled.outputs:
                self.rows[value] = fact
            elif i not in ruled.sums:
                self._unknown[value] = node
        if ruled.sums:
            self.plan[node] = SUMMED

    def _read(self, node: Node, having: list[Value]) -> None:
        if node.op == "gradient":
            if any(value in self.rows for value in node.inputs[: node.attrs["ys"]]):
                refuse(node, "differentiates something of every token")
            self.plan[node] = GRADIENT
            return
        if node.op == "attention":
            self._attention(node)
            return
        first = self.rows[having[0]]
        for special in (
            self._reshape,
            self._transpose,
            self._repeat,
            self._reduce,
            self._pick,
            self._softmax,
            self._select_seen,
        ):
            if special(node, first):
                return
        layouts = {self.rows[value].layout for value in having}
        ruled = lookup(node.op).rows(node, first.layout + 1) if len(layouts) == 1 else None
        if ruled is None:
            refuse(node, "reads padded rows")
        stream = first.stream
        for i, value in enumerate(node.inputs):
            if value in self.rows:
                if i not in ruled.operands:
                    refuse(node, "reads padded rows")
                stream = self._unite(node, stream, self.rows[value].stream)
        self._set_rows(node, ruled, Fact(stream, first.layout))
        self._find_weights(node, ruled, first.layout, stream)

    def _find_weights(self, node: Node, ruled: Rows, layout: int, stream: int) -> None:
        """Records values that rows are multiplied by, or selected by, one number per row."""
        if node.op not in ("mul", "select"):
            return
        for i, value in enumerate(node.inputs[:2]):
            single = all(dim == 1 for dim in value.shape[layout + 1 :])
            if i in ruled.operands and value in self.free and single and layout < 2:
                self.streams[self.stream_of(stream)].weights.append((value, layout))

    def _attention(self, node: Node) -> None:
        query, key, value, *others = node.inputs
        masks = others[:-2] if "rate" in node.attrs else others
        facts = [self.rows.get(operand) for operand in (query, key, value)]
        if any(fact is None or fact.layout != 1 for fact in facts):
            refuse(node, "combines tokens with values that are not tokens")
        ours, theirs, third = (fact.stream for fact in facts if fact is not None)
        theirs = self._unite(node, theirs, third)
        split = split_causal(masks[0]) if len(masks) == 1 and not node.attrs["causal"] else None
        if split is not None:
            self.causal[node] = split
        if node.attrs["causal"] or split is not None:
            theirs = ours = self._unite(node, ours, theirs)
            self.streams[theirs].causal = True
        elif not masks:
            refuse(node, "attends to padding that no mask hides")
        stream = self.streams[self.stream_of(theirs)]
        for mask in masks:
            if mask not in self.free:
                refuse(node, "has a mask that depends on variables")
            parts = (mask,) if split is None else split.seen
            if parts and parts not in stream.masks:
                stream.masks.append(parts)
        if any(self.streams[self.stream_of(number)].listed for number in (ours, theirs)):
            refuse(node, "attends to a list of tokens")
        self.plan[node] = ATTENTION
        self.rows[node.outputs[0]] = Fact(ours, 1)
        self._unknown[node.outputs[1]] = node

    def _reshape(self, node: Node, fact: Fact) -> bool:
        if node.op != "reshape":
            return False
        old, new, dims = node.inputs[0].shape, node.output.shape, self._dims_of(fact)
        layout: Optional[int] = None
        if fact.layout < 2:
            layout = _layout_of(new, dims)
        else:
            layout = _layout_with(new, dims, old[1 : fact.layout])
        if layout is None:
            refuse(node, "splits or merges the axes that count tokens")
        self.plan[node] = RESHAPED
        self.rows[node.output] = Fact(fact.stream, layout)
        return True

    def _transpose(self, node: Node, fact: Fact) -> bool:
        if node.op != "transpose":
            return False
        permutation = tuple(node.attrs["permutation"])
        if permutation[0] != 0:
            refuse(node, "moves another axis before the sequences")
        layout = permutation.index(fact.layout)
        self.plan[node] = TRANSPOSED
        self.rows[node.output] = Fact(fact.stream, layout)
        return True

    def _repeat(self, node: Node, fact: Fact) -> bool:
        """Heads of keys and values that are repeated, before the axis of positions."""
        if node.op != "broadcast_to" or fact.layout < 2:
            return False
        old, new = node.inputs[0].shape, node.output.shape
        if len(old) != len(new) or any(old[axis] != new[axis] for axis in (0, fact.layout)):
            return False
        self._set_rows(node, Rows((0,)), fact)
        return True

    def _select_seen(self, node: Node, fact: Fact) -> bool:
        """What is 0 for queries that see no key: a real token sees itself."""
        if node.op != "select" or node.inputs[1] not in self.rows:
            return False
        sees = node.inputs[0].node
        if sees is None or sees.op != "any" or node.output.shape != node.inputs[1].shape:
            return False
        rank = sees.inputs[0].type.rank
        if rank != 4 or fact.layout != 2 or not sees.attrs["keepdims"]:
            return False
        if {axis % rank for axis in sees.attrs["axes"]} != {3}:
            return False
        stream = self.stream_of(fact.stream)
        for attention, split in self.causal.items():
            rows = self.rows[attention.outputs[0]]
            if (
                split.condition is narrowed(sees.inputs[0])
                and self.stream_of(rows.stream) == stream
            ):
                self.plan[node] = SELECTED
                self.rows[node.output] = fact
                return True
        return False

    def _reduce(self, node: Node, fact: Fact) -> bool:
        """Sums and means over tokens; those over other axes are computed by rows."""
        if node.op not in ("sum", "mean"):
            return False
        axes = {axis % node.inputs[0].type.rank for axis in node.attrs["axes"]}
        tokens = {0, fact.layout}
        if tokens <= axes:
            self.plan[node] = SUMMED
            return True
        if axes == {1} == {fact.layout}:
            self.plan[node] = BY_SEQUENCE
            return True
        return False

    def _pick(self, node: Node, fact: Fact) -> bool:
        """Rows at positions that are constant, as of [CLS] or all but the last, or data."""
        if node.inputs[0] not in self.rows or self.streams[self.stream_of(fact.stream)].listed:
            return False
        if node.op == "slice" and fact.layout == 1:
            whole = node.attrs["starts"][0] == 0 and node.attrs["strides"][0] == 1
            part = node.attrs["sizes"][1] != node.inputs[0].shape[1]
            if not (whole and part and node.attrs["sizes"][0] == node.inputs[0].shape[0]):
                return False
            if not isinstance(node.attrs["starts"][1], int):
                return False
            if node.attrs["sizes"][1] == 1:
                self.plan[node] = PICKED
                return True
            rest = node.attrs["sizes"][2:] == node.inputs[0].shape[2:]
            listed = self._lists and rest and node.attrs["strides"][1] == 1
            return listed and self._list(node, 1, node.output.shape)
        if node.op != "gather" or node.inputs[1] not in self.free:
            return False
        form = fact.layout, node.attrs["axis"], node.attrs["batch_dims"]
        indices = node.inputs[1]
        if form not in ((1, 1, 1), (0, 0, 0)) or indices.type.rank != 1 + form[2]:
            return False
        return self._list(node, form[0], (1, *indices.shape)[-2:])

    def _list(self, node: Node, layout: int, dims: Shape) -> bool:
        """Plans rows at a list of positions, which may be a stream of their own."""
        self.plan[node] = LISTED
        if self._lists:
            count, length = dims[:2]
            assert count is not None and length is not None
            stream = self._new_stream((count, length), listed=True)
            self.rows[node.output] = Fact(stream, layout)
        return True

    def _softmax(self, node: Node, fact: Fact) -> bool:
        """Softmax over the tokens of each sequence, with or without the cross-entropy."""
        if node.op not in ("softmax", "sparse_softmax_xent") or fact.layout != 1:
            return False
        if node.inputs[0].type.rank != 2 or any(v in self.rows for v in node.inputs[1:]):
            return False
        if any(value not in self.free for value in node.inputs[1:]):
            return False
        self.plan[node] = SOFTMAX
        return True

    def _dims_of(self, fact: Fact) -> Dims:
        return self.streams[self.stream_of(fact.stream)].dims


def _token_dims(step: StepGraph) -> list[Dims]:
    """B and S of the operands of attention."""
    found: dict[Dims, None] = {}
    for node in step.graph.nodes:
        if node.op == "attention":
            for value in node.inputs[:2]:
                count, length = value.shape[:2]
                if count is not None and length is not None:
                    found[count, length] = None
    return list(found)


def _layout_with(shape: Shape, dims: Sequence[Size], between: Shape) -> Optional[int]:
    """The layout of a shape [B, .., S, ...] with axes of the same product between B and S."""
    if None in shape or None in between or shape[:1] != (dims[0],):
        return None
    wanted = TensorType("bool", between).size
    for axis, size in enumerate(shape[1:], 1):
        if size == dims[1] and TensorType("bool", shape[1:axis]).size == wanted:
            return axis
    return None


def _layout_of(shape: Shape, dims: Sequence[Size]) -> Optional[int]:
    """The layout of a shape that begins with tokens; None for others."""
    if shape[:2] == tuple(dims):
        return 1
    if shape[:1] == (dims[0] * dims[1],):
        return 0
    return None


def without_attention(graph: Graph, asked: bool) -> str:
    """Why padding of a step without `attention` is not removed; "" to stay silent."""
    for node in graph.nodes:
        if node.op == "matmul" and node.output.type.rank > 2:
            softmax = _softmax_before(node.inputs[0])
            if softmax is not None:
                return (
                    f"padding is not removed: {softmax.op} ('{softmax.source}') is attention in an "
                    "unknown form. Scores must be products, scaled and with a mask added, and the "
                    "softmax must have no other readers."
                )
    return "padding is not removed: the model has no attention with a mask." if asked else ""


def _softmax_before(value: Value) -> Optional[Node]:
    """The softmax that a value is computed from elementwise, as by dropout, or None."""
    node = value.node
    while node is not None and node.op != "softmax":
        wide = [item for item in node.inputs if item.shape == value.shape]
        if not (lookup(node.op).elementwise or node.op == "reshape") or not node.inputs:
            return None
        node = (wide or node.inputs)[0].node
    return node


# A value that depends on features only, the layout of its rows, and the operation that needs it.
Needed = tuple[Value, int, str]


class Pad(NamedTuple):
    """A value at padded positions of the padded program.

    Attributes:
        value: the scalar that it equals there if the values of `checks` are 0 there; None if it is
            unknown.
        checks: values that must be 0 at padded positions.
        hiding: an operand of the sum that the value is; if it hides padding, so does the sum.
    """

    value: Optional[Array]
    checks: tuple[Needed, ...]
    hiding: Optional[Needed]


NOTHING = Pad(None, (), None)


class Pads:
    """Values at padded positions, of values that have rows; `held` are those found so far."""

    def __init__(self, facts: PaddingAnalysis) -> None:
        self.held: dict[Value, Pad] = {}
        self._facts = facts

    def get(self, value: Value) -> Pad:
        """The pad of a value."""
        return self.held.get(value, NOTHING)

    def of(self, node: Node, fact: Fact) -> Pad:
        """The pad of the output of a node that is computed by rows."""
        hiding = self._hiding(node, fact)
        zero = self.zero(node, fact) or self._selected(node, fact)
        if zero is not None:
            return zero._replace(hiding=hiding)
        pads = self._operands(node)
        values = [None if pad is None else pad.value for pad in pads]
        if lookup(node.op).elementwise and all(value is not None for value in values):
            (found,) = evaluate(node.op, [np.asarray(value) for value in values], node.attrs)
            checks = tuple(check for pad in pads if pad is not None for check in pad.checks)
            return Pad(np.asarray(found), checks, hiding)
        return Pad(None, (), hiding)

    def zero(self, node: Node, fact: Fact) -> Optional[Pad]:
        """The pad of an output that is 0 because an operand is, or is checked to be; else None."""
        ruled, pads = self._facts.ruled[node], self._operands(node)
        nothing = np.zeros((), node.outputs[0].type.numpy_dtype)
        candidates = [i for i in lookup(node.op).zeros if i in ruled.operands]
        for i in candidates:
            pad = pads[i]
            if pad is not None and pad.value is not None and not pad.value.any():
                return Pad(nothing, pad.checks, None)
        for i in candidates:
            if self._can_check(node.inputs[i], fact):
                return Pad(nothing, ((node.inputs[i], fact.layout, node.source),), None)
        return None

    def _can_check(self, value: Value, fact: Fact) -> bool:
        """Whether a batch can be checked for what a value holds at padded positions."""
        return value in self._facts.free and fact.layout < 2

    def _hiding(self, node: Node, fact: Fact) -> Optional[Needed]:
        """A value that is added to rows, and may hide padding."""
        if node.op in ("identity", "stop_gradient"):
            return self.get(node.inputs[0]).hiding
        if node.op == "add":
            for i, value in enumerate(node.inputs):
                if i in self._facts.ruled[node].operands and self._can_check(value, fact):
                    return value, fact.layout, node.source
        return None

    def _selected(self, node: Node, fact: Fact) -> Optional[Pad]:
        """The pad of a `select` whose condition is checked to be False; else None."""
        if node.op != "select" or 0 not in self._facts.ruled[node].operands:
            return None
        condition, other = node.inputs[0], self._operands(node)[2]
        if other is None or other.value is None or not self._can_check(condition, fact):
            return None
        return Pad(other.value, (*other.checks, (condition, fact.layout, node.source)), None)

    def _operands(self, node: Node) -> list[Optional[Pad]]:
        """Pads of operands that have rows or are scalar constants."""
        found: list[Optional[Pad]] = []
        for value in node.inputs:
            constant = value.constant
            if value in self._facts.rows:
                found.append(self.get(value))
            elif constant is not None and constant.size == 1:
                found.append(Pad(constant.reshape(()), (), None))
            else:
                found.append(None)
        return found


class HostValues:
    """The graph that is computed from a batch's features before the step, and its checks."""

    def __init__(self, step: StepGraph) -> None:
        self.graph = Graph("packing")
        self.checks: list[Check] = []
        self._names = {value: name for name, value in step.features.items()}
        self._copies: dict[Value, Value] = {}
        self._positions: dict[Value, int] = {}

    def output(self, value: Value) -> int:
        """The position among the graph's outputs of a value that depends on features only."""
        if value not in self._positions:
            self._positions[value] = len(self.graph.outputs)
            self.graph.outputs.append(self._copy(value))
        return self._positions[value]

    def _copy(self, wanted: Value) -> Value:
        pending = [wanted]
        while pending:
            value = pending[-1]
            node = value.node
            if value in self._copies:
                pending.pop()
            elif node is None:
                self._copies[value] = self.graph.add_input(self._names[value], value.type)
            else:
                missing = [operand for operand in node.inputs if operand not in self._copies]
                pending.extend(missing)
                if missing:
                    continue
                operands = [self._copies[operand] for operand in node.inputs]
                types = [output.type for output in node.outputs]
                made = self.graph.make_node(node.op, operands, node.attrs, types, node.source)
                self.graph.nodes.append(made)
                self._copies.update(zip(node.outputs, made.outputs))
        return self._copies[wanted]

    def check_value(
        self, kind: str, space: TokenSpace, value: Value, layout: int, source: str
    ) -> None:
        """Adds a check of a value at padded positions."""
        self._add(Check(kind, space.name, self.output(value), layout, source=source))

    def check_spans(self, kind: str, space: TokenSpace, number: int, source: str) -> None:
        """Adds a check of where real tokens are: FIRST or SPAN."""
        self._add(Check(kind, space.name, number=number, source=source))

    def check_positions(
        self,
        space: TokenSpace,
        indices: Value,
        layout: int,
        source: str,
        among: Optional[TokenSpace] = None,
    ) -> None:
        """Adds a check that positions are those of real tokens.

        Args:
            space: of the tokens.
            indices: layout 1: [B], [B, P] positions in each sequence (1 for B: the same in all);
                layout 0: rows b S + s.
            layout: 1 or 0.
            among: the list of those positions that count; None if all do.
        """
        listed = "" if among is None else among.name
        at = self.output(indices)
        self._add(Check(REAL, space.name, at, layout, among=listed, source=source))

    def _add(self, check: Check) -> None:
        if check not in self.checks:
            self.checks.append(check)
