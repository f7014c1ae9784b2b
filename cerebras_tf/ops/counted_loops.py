"""Emits loops: a `scan` where the number of iterations is known or bounded, else a `while`.

A loop is given as a condition and a body over loop variables, as TensorFlow has it. Where the
condition compares a counter with what does not change, the loop is counted: tables that it reads
at the counter become xs, tables that it writes there become ys.

Legend: T iterations, N rows of a table.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Optional

import numpy as np

from cerebras_tf.ir import Array, Graph, Node, Size, Value
from cerebras_tf.ops.builder import Builder
from cerebras_tf.ops.registry import can_fold
from cerebras_tf.ops.sizes import counted, counts, known_count

# Distance between the draws of two steps in a loop without a bound.
_MANY = 1 << 20
# Comparisons (counter, limit): whether the counter rises, and how many more the limit includes.
_LIMITS = {
    "less": (True, 0),
    "less_equal": (True, 1),
    "greater": (False, 0),
    "greater_equal": (False, 1),
}
_MIRRORED = {
    "less": "greater",
    "greater": "less",
    "less_equal": "greater_equal",
    "greater_equal": "less_equal",
}


@dataclass
class Loop:
    """A loop over variables.

    Attributes:
        cond: carries and consts -> bool [].
        body: carries and consts -> the next carries.
        starts: the first carries.
        consts: what does not change.
        draws: int64 [], numbers of earlier draws. Each is the start of a further last input of
            `body` and `cond`, which counts the draws within the loop.
    """

    cond: Graph
    body: Graph
    starts: list[Value]
    consts: list[Value]
    draws: list[Value] = field(default_factory=list)


def emit_loop(b: Builder, loop: Loop) -> list[Value]:
    """Emits a loop and returns its last carries."""
    return _Emitter(b, loop).run()


def written_rows(b: Builder, loop: Loop) -> list[Optional[int]]:
    """For every carry the rows that a loop writes of it, from the first; None if not known.

    Args:
        b: may get nodes that nothing reads.
    """
    return _Emitter(b, loop).written_rows()


@dataclass(frozen=True)
class _Index:
    """A position first + step * t at iteration t."""

    first: int
    step: int


class _Emitter:
    def __init__(self, b: Builder, loop: Loop) -> None:
        self.b, self.cond, self.body = b, loop.cond, loop.body
        self.starts, self.consts, self.draws = loop.starts, loop.consts, loop.draws
        count = self.count = len(loop.starts)
        self.inputs = list(self.body.inputs)
        outputs = [_source(value) for value in self.body.outputs]
        self.same = [outputs[i] is self.inputs[i] for i in range(count)]
        # What every unchanging input is outside, in both graphs.
        self.outside: dict[Value, Value] = {}
        after = count + len(loop.consts)
        for graph in (self.cond, self.body):
            self.outside.update(zip(graph.inputs[count:after], loop.consts))
            self.outside.update(
                (graph.inputs[i], self.starts[i]) for i in range(count) if self.same[i]
            )
        self.counters: dict[int, _Index] = {}
        for i in range(count):
            step = _increment(outputs[i], self.inputs[i])
            first = known_count(self.starts[i])
            if step and isinstance(first, int) and not self.starts[i].type.rank:
                self.counters[i] = _Index(first, step)
        self.limits: list[Value] = []  # numbers of iterations that depend on data
        self.length: Optional[Size] = None
        limited = [self._limit(term) for term in _terms(self.cond.outputs[0])]
        self.is_counted = all(limited)
        if self.length is None and self.limits:
            self.length = self._shortest_read()

    def run(self) -> list[Value]:
        if self.is_counted and self.length is not None:
            return self._emit_scan(self.length)
        return self._emit_while()

    def written_rows(self) -> list[Optional[int]]:
        """See the function."""
        found: list[Optional[int]] = []
        for value in self.body.outputs[: self.count]:
            node = _source(value).node
            at = None
            if node is not None and node.op == "rows_update":
                at = self._index(node.inputs[1])
            length = self.length if self.is_counted and not self.limits else None
            known = at is not None and isinstance(length, int)
            found.append(at.first + at.step * (length - 1) + 1 if known else None)  # type: ignore
        return found

    # The number of iterations.

    def _limit(self, term: Value) -> bool:
        """Whether a term of the condition limits the number of iterations."""
        content = term.constant
        if content is not None:
            return bool(content)
        node = term.node
        if node is None or node.op not in _LIMITS:
            return False
        left, right = (_source(value) for value in node.inputs)
        at = {self.cond.inputs[i]: i for i in self.counters}
        op = node.op
        if right in at:
            left, right, op = right, left, _MIRRORED[op]
        if left not in at or left.type.rank:
            return False
        index = self.counters[at[left]]
        rises, more = _LIMITS[op]
        outside = self._emit_outside(right)
        if outside is None or rises != (index.step > 0):
            return False
        known = known_count(outside)
        if isinstance(known, int):
            distance = (known - index.first) * (1 if rises else -1) + more
            trips: Size = max(0, -(-distance // abs(index.step)))
            self.length = trips if self.length is None else _smaller(self.length, trips)
            return True
        if abs(index.step) != 1 or outside.type.rank:
            return False
        if known is not None and index.first == 0 and rises and not more:
            self.length = known if self.length is None else _smaller(self.length, known)
            return True
        b = self.b
        distance_ = b.op("cast", outside, dtype="int32")
        first = b.constant(index.first, "int32")
        pair = (distance_, first) if rises else (first, distance_)
        self.limits.append(b.op("add", b.op("sub", *pair), b.constant(more, "int32")))
        return True

    def _emit_outside(self, value: Value) -> Optional[Value]:
        """What a value that does not change is outside of the loop; None for others."""
        if value in self.outside:
            return self.outside[value]
        node = value.node
        if node is None:
            return None
        operands = [self._emit_outside(operand) for operand in node.inputs]
        if any(operand is None for operand in operands):
            return None
        made = self.b.multi(node.op, *(v for v in operands if v is not None), **node.attrs)
        self.outside.update(zip(node.outputs, made))
        return self.outside[value]

    def _shortest_read(self) -> Optional[Size]:
        """The most iterations by the size of the axes that are read at a counter."""
        found: Optional[int] = None
        for node in self.body.nodes:
            table = self._table(node.inputs[0]) if _is_element(node) else None
            size = None if table is None else table.shape[node.attrs["axis"]]
            if isinstance(size, int):
                positions = self._positions(node.inputs[1], size)
                if positions is None or not size:
                    continue
                trips = size - int(positions[0])
                if np.array_equal(positions, positions[0] + np.arange(size)):
                    found = trips if found is None else min(found, trips)
        return found

    def _positions(self, value: Value, count: int) -> Optional[Array]:
        """What one number of the body that depends on counters alone is at every iteration."""
        if self.b.evaluate is None:
            return None
        known: dict[Value, Array] = {}
        needed: set[Node] = set()
        stack = [value]
        while stack:
            part = stack.pop()
            outside = self.outside.get(part)
            if outside is not None and outside.constant is not None:
                known[part] = outside.constant
            elif part.node is None and _counter(self, part) is None:
                return None
            elif part.node is not None and part.node not in needed:
                if part.node.op == "constant":
                    known[part] = part.node.attrs["value"]
                elif can_fold(part.node.op, part.node.attrs):
                    needed.add(part.node)
                    stack.extend(part.node.inputs)
                else:
                    return None
        order = [node for node in self.body.nodes if node in needed]
        found = np.empty(count, np.int64)
        for t in range(count):
            values = dict(known)
            for i, index in self.counters.items():
                kind = self.inputs[i].type.numpy_dtype
                values[self.inputs[i]] = np.asarray(index.first + index.step * t, kind)
            for node in order:
                made = self.b.evaluate(node.op, [values[v] for v in node.inputs], node.attrs)
                values.update(zip(node.outputs, made))
            found[t] = values[value].reshape(())
        return found

    def _table(self, value: Value) -> Optional[Value]:
        """An unchanging table outside of the loop."""
        return self.outside.get(_source(value))

    def _index(self, value: Value) -> Optional[_Index]:
        """A scalar of the body that is a counter, or its sum with a number."""
        value = _source(value)
        if value in self.inputs[: self.count]:
            return self.counters.get(self.inputs.index(value))
        node = value.node
        if node is None or value.type.rank:
            return None
        if node.op == "cast" and "int" in node.inputs[0].dtype:
            return self._index(node.inputs[0])
        if node.op in ("add", "sub"):
            left, right = node.inputs
            sign = 1 if node.op == "add" else -1
            number, index = known_count(right), self._index(left)
            if index is not None and isinstance(number, int):
                return _Index(index.first + sign * number, index.step)
            number, index = self._known_outside(left), self._index(right)
            if index is not None and isinstance(number, int):
                return _Index(number + sign * index.first, sign * index.step)
        return None

    def _known_outside(self, value: Value) -> Optional[Size]:
        outside = self._emit_outside(_source(value))
        return None if outside is None else known_count(outside)

    # What is emitted.

    def _emit_while(self) -> list[Value]:
        """A `while` of the variables that change."""
        b, count = self.b, self.count
        moving = [i for i in range(count) if not self.same[i]]
        still = [i for i in range(count) if self.same[i]]
        after = count + len(self.consts)
        distance = counts(b, _MANY if self.length is None else self.length, "int64")
        starts = [b.op("mul", drawn, distance) for drawn in self.draws]
        for graph in (self.cond, self.body):
            given = graph.inputs
            carries = [*(given[i] for i in moving), *given[after:]]
            graph.inputs = [*carries, *(given[i] for i in still), *given[count:after]]
        one = Builder(self.body, b.evaluate)
        drawn = [one.op("add", value, 1) for value in self.inputs[after:]]
        self.body.outputs = [*(self.body.outputs[i] for i in moving), *drawn]
        for graph in (self.cond, self.body):
            graph.prune()
        operands = [*(self.starts[i] for i in moving), *starts]
        found = b.multi(
            "while",
            *operands,
            *(self.starts[i] for i in still),
            *self.consts,
            cond=self.cond,
            body=self.body,
            carries=len(operands),
            bound=self.length,
        )
        made = dict(zip(moving, found))
        return [made.get(i, self.starts[i]) for i in range(count)]

    def _emit_scan(self, length: Size) -> list[Value]:
        b, body = self.b, self.body
        if length == 0:
            return self.starts
        xs: list[tuple[Value, Value]] = []  # slice in the body, array outside
        replaced: dict[Value, Value] = {}

        def add_x(old: Value, array: Value) -> None:
            made = body.add_input("x", array.type.with_shape(array.shape[1:]))
            xs.append((made, array))
            replaced[old] = made

        for node in body.nodes:
            table = self._table(node.inputs[0]) if _is_element(node) else None
            rows = None if table is None else self._elements(table, node, length)
            if rows is not None:
                part = body.add_input("x", rows.type.with_shape(rows.shape[1:]))
                xs.append((part, rows))
                node.op, node.inputs = "reshape", [part]
                node.attrs = {"shape": node.output.shape}
        tables = {i: w for i in range(self.count) if (w := self._written(i, length)) is not None}
        for i, index in self.counters.items():
            add_x(self.inputs[i], self._numbers(index, length, self.starts[i].dtype))
        after = self.count + len(self.consts)
        for value, drawn in zip(self.inputs[after:], self.draws):
            numbers = self._numbers(_Index(0, 1), length, "int64")
            add_x(value, b.op("add", b.op("mul", drawn, counts(b, length, "int64")), numbers))
        kept = [
            i for i in range(self.count) if not (self.same[i] or i in self.counters or i in tables)
        ]
        outputs = [*(body.outputs[i] for i in kept), *(item for _, item in tables.values())]
        body.outputs = outputs
        body.replace(replaced)
        body.prune()
        consts = [(self.inputs[i], self.starts[i]) for i in range(self.count) if self.same[i]]
        consts += list(zip(self.inputs[self.count : after], self.consts))
        read = {value for node in body.nodes for value in node.inputs} | set(body.outputs)
        xs = [(inner, outer) for inner, outer in xs if inner in read]
        consts = [(inner, outer) for inner, outer in consts if inner in read]
        body.inputs = [self.inputs[i] for i in kept]
        body.inputs += [inner for inner, _ in [*xs, *consts]]
        trips = self._trips(length)
        found = b.multi(
            "scan",
            *([] if trips is None else [trips]),
            *(self.starts[i] for i in kept),
            *(outer for _, outer in [*xs, *consts]),
            body=body,
            carries=len(kept),
            xs=len(xs),
            length=length,
            reverse=False,
            counted=trips is not None,
        )
        last = dict(zip([*kept, *tables], found))
        for i, (index, _) in tables.items():
            last[i] = self._table_after(i, index, last[i], trips)
        for i, index in self.counters.items():
            last[i] = self._counter_after(i, index, length, trips)
        return [last.get(i, self.starts[i]) for i in range(self.count)]

    def _trips(self, length: Size) -> Optional[Value]:
        """The number of iterations, int32 [], where it depends on data."""
        if not self.limits:
            return None
        b = self.b
        least = functools.reduce(lambda x, y: b.op("minimum", x, y), self.limits)
        most = counts(b, length, "int32")
        return b.op("minimum", b.op("maximum", least, b.constant(0, "int32")), most)

    def _numbers(self, index: _Index, length: Size, dtype: str) -> Value:
        return counted(self.b, length, index.step, dtype, index.first)

    def _elements(self, table: Value, node: Node, length: Size) -> Optional[Value]:
        """What the iterations read of a table along an axis, stacked; None if it is not known."""
        axis = node.attrs["axis"]
        order = (axis, *(other for other in range(table.type.rank) if other != axis))
        whole = table.shape[axis] == length and self._index(node.inputs[1]) == _Index(0, 1)
        positions = None
        if not whole:
            if not isinstance(length, int) or not isinstance(table.shape[axis], int):
                return None
            positions = self._positions(node.inputs[1], length)
            if positions is None or positions.min() < 0 or positions.max() >= table.shape[axis]:
                return None
            whole = np.array_equal(positions, np.arange(table.shape[axis]))
        if order != tuple(range(table.type.rank)):
            table = self.b.op("transpose", table, permutation=order)
        if whole:
            return table
        assert positions is not None and isinstance(length, int)
        if np.array_equal(positions, positions[0] + np.arange(length)):
            return _cut(self.b, table, int(positions[0]), length)
        return self.b.op("gather", table, self.b.constant(positions), axis=0, batch_dims=0)

    def _written(self, i: int, length: Size) -> Optional[tuple[_Index, Value]]:
        """Where every iteration writes a table that it does not read, and the row."""
        table, node = self.inputs[i], _source(self.body.outputs[i]).node
        if node is None or node.op != "rows_update" or node.inputs[1].type.rank:
            return None
        uses = [x for x in self.body.nodes for v in x.inputs if v is table and x.op != "identity"]
        through = [
            x for x in self.body.nodes for v in x.inputs if v is not table and _source(v) is table
        ]
        index, rows = self._index(node.inputs[1]), table.shape[0]
        if _source(node.inputs[0]) is not table or len(uses) + len(through) != 1 or index is None:
            return None
        if self.body.outputs.count(self.body.outputs[i]) > 1 or _is_read(self.body, node.output):
            return None
        if rows == length and index == _Index(0, 1):
            return index, node.inputs[2]
        if not isinstance(length, int) or not isinstance(rows, int) or abs(index.step) != 1:
            return None
        last = index.first + index.step * (length - 1)
        if not (0 <= index.first < rows and 0 <= last < rows):
            return None
        return index, node.inputs[2]

    def _table_after(self, i: int, index: _Index, ys: Value, trips: Optional[Value]) -> Value:
        """The table after the loop: rows that it did not write are as before."""
        b, before = self.b, self.starts[i]
        length, count = ys.shape[0], before.shape[0]
        if index.step < 0:
            assert isinstance(length, int)
            backwards = b.constant(np.arange(length)[::-1].copy())
            ys = b.op("gather", ys, backwards, axis=0, batch_dims=0)
        if length == count and (trips is None or is_zero(before)):
            return ys
        assert isinstance(length, int) and isinstance(count, int)
        first = index.first if index.step > 0 else index.first - length + 1
        if trips is not None and not is_zero(before):
            numbers = np.arange(length)[:: index.step].astype(np.int32)
            written = b.op("less", b.constant(numbers), trips)
            written = b.op("reshape", written, shape=(length,) + (1,) * (ys.type.rank - 1))
            ys = b.op("select", written, ys, _cut(b, before, first, length))
        parts = [_cut(b, before, 0, first), ys]
        parts.append(_cut(b, before, first + length, count - first - length))
        parts = [part for part in parts if part.shape[0] != 0]
        return parts[0] if len(parts) == 1 else b.op("concat", *parts, axis=0)

    def _counter_after(self, i: int, index: _Index, length: Size, trips: Optional[Value]) -> Value:
        b, dtype = self.b, self.starts[i].dtype
        if trips is None:
            return counts(b, index.first + index.step * length, dtype)
        moved = b.op("mul", b.op("cast", trips, dtype=dtype), b.constant(index.step, dtype))
        return b.op("add", moved, b.constant(index.first, dtype))


def _source(value: Value) -> Value:
    """What identities were applied to."""
    while value.node is not None and value.node.op == "identity":
        value = value.node.inputs[0]
    return value


def _increment(value: Value, carry: Value) -> int:
    """The number that the next value of an integer is larger by; 0 if it is not known."""
    node = value.node
    if node is None or node.op not in ("add", "sub") or "int" not in value.dtype or value.type.rank:
        return 0
    for left, right in (node.inputs, *([node.inputs[::-1]] if node.op == "add" else [])):
        number = known_count(right)
        if _source(left) is carry and isinstance(number, int):
            return number if node.op == "add" else -number
    return 0


def _terms(value: Value) -> list[Value]:
    """Values that must all be true for one to be true."""
    value = _source(value)
    if value.node is not None and value.node.op == "logical_and":
        return [term for part in value.node.inputs for term in _terms(part)]
    return [value]


def _is_element(node: Node) -> bool:
    """Whether a node reads at one position of an axis."""
    if node.op != "gather" or node.attrs["batch_dims"] or not node.output.type.is_bounded:
        return False
    return node.inputs[1].shape in ((), (1,))


def _counter(emitter: _Emitter, value: Value) -> Optional[_Index]:
    inputs = emitter.inputs
    return emitter.counters.get(inputs.index(value)) if value in inputs else None


def _is_read(graph: Graph, value: Value) -> bool:
    """Whether a node reads a value, other than identities."""
    return any(
        _source(v) is value for node in graph.nodes if node.op != "identity" for v in node.inputs
    )


def is_zero(value: Value) -> bool:
    """Whether a value is known to consist of zeros."""
    while value.node is not None and value.node.op in ("broadcast_to", "reshape", "identity"):
        value = value.node.inputs[0]
    return value.constant is not None and not np.any(value.constant)


def _smaller(a: Size, b: Size) -> Size:
    return min(a, b) if isinstance(a, int) and isinstance(b, int) else a


def _cut(b: Builder, x: Value, first: int, length: int) -> Value:
    """Rows of a table."""
    rest = x.shape[1:]
    starts, sizes = (first, *(0 for _ in rest)), (length, *rest)
    return b.op("slice", x, starts=starts, sizes=sizes, strides=(1,) * len(x.shape))
