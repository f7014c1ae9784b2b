"""Loops: `scan`, whose number of iterations is known or has a bound, and `while`.

A loop's body is a region. How loops run is registered in runtime/loops.py, the gradient is in
ops/loop_gradients.py.

Legend: T iterations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cerebras_tf.errors import GraphError
from cerebras_tf.ir import Graph, Node, Size, TensorType, Value, bound_of
from cerebras_tf.ops import rows
from cerebras_tf.ops.loop_gradients import scan_vjp, while_vjp
from cerebras_tf.ops.registry import Attrs, Region, Signature, Structure, register


@dataclass(frozen=True)
class Operands:
    """Where the operands of a loop are: [count,] carries, xs, consts.

    Attributes:
        first: position of the first carry.
        carries: number of values that an iteration passes to the next one.
        xs: number of operands of which every iteration reads its slice.
    """

    first: int
    carries: int
    xs: int

    @classmethod
    def of(cls, attrs: Attrs) -> Operands:
        """Those of a node with these attributes."""
        return cls(int(attrs.get("counted", False)), attrs["carries"], attrs.get("xs", 0))

    def split(self, items: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any], list[Any]]:
        """The count, if there is one, carries, xs and consts."""
        carries = self.first + self.carries
        xs = carries + self.xs
        return (
            list(items[: self.first]),
            list(items[self.first : carries]),
            list(items[carries:xs]),
            list(items[xs:]),
        )


def stacked(type: TensorType, length: Size) -> TensorType:
    """The type of an array with a slice of this type for every iteration."""
    return type.with_shape((length, *type.shape))


def _slice(type: TensorType, length: Size) -> TensorType:
    if type.rank == 0 or type.shape[0] != length:
        raise GraphError(
            f"op scan: the first axis of xs must have a slice for each of {length} iterations. "
            f"Received: {type}. Slice or transpose it."
        )
    return type.with_shape(type.shape[1:])


def _require(op: str, region: str, wanted: list[TensorType], found: list[TensorType]) -> None:
    if wanted != found:
        raise GraphError(
            f"op {op}: {region} must be {list(map(str, wanted))}. "
            f"Received: {list(map(str, found))}. Cast or reshape them."
        )


def _region_inputs(inputs: Sequence[TensorType], attrs: Attrs) -> list[TensorType]:
    _, carries, xs, consts = Operands.of(attrs).split(inputs)
    return [*carries, *(_slice(type, attrs["length"]) for type in xs), *consts]


def _scan_infer(inputs: Sequence[Value], attrs: Attrs) -> list[TensorType]:
    """scan([count,] *carries, *xs, *consts; body, carries, xs, length, reverse, counted)
    -> the last carries, then ys [length, ...]

    `body` maps the carries, a slice of every x and the consts to the next carries and a slice of
    every y; `reverse` begins with the last slice. With `counted`, only the first `count` slices
    (int32 [], at most length) are iterated over, and the other slices of the ys are zero.
    """
    body: Graph = attrs["body"]
    carries = attrs["carries"]
    types = [value.type for value in inputs]
    expected = _region_inputs(types, attrs)
    _require("scan", "operands", [value.type for value in body.inputs], expected)
    outputs = [value.type for value in body.outputs]
    _require("scan", "the next carries", expected[:carries], outputs[:carries])
    return outputs[:carries] + [stacked(type, attrs["length"]) for type in outputs[carries:]]


def _scan_regions(node: Node) -> list[Region]:
    operands = Operands.of(node.attrs)
    inputs, outputs = range(operands.first, len(node.inputs)), range(len(node.outputs))
    carried = tuple((at, at) for at in range(operands.carries))
    return [Region(node.attrs["body"], tuple(inputs), tuple(outputs), carried)]


def _scan_signature(
    attrs: Attrs, inputs: Sequence[TensorType], outputs: Sequence[TensorType]
) -> Signature:
    carries = attrs["carries"]
    made = [*outputs[:carries], *(_slice(type, attrs["length"]) for type in outputs[carries:])]
    return {"body": (_region_inputs(inputs, attrs), made)}


def _scan_cost(attrs: Attrs) -> tuple[int, int]:
    """That of all iterations; the carries are kept twice."""
    body = attrs["body"]
    scratch_bytes = _round_up(body.arena_bytes) + _kept(body, attrs["carries"])
    scratch_bytes += body.scratch_bytes
    return bound_of(attrs["length"]) * body.flops, scratch_bytes


def _kept(body: Any, carries: int) -> int:
    """Bytes of two places of every carry."""
    types = [body.slots[slot].type for slot in list(body.results.values())[:carries]]
    return sum(2 * _round_up(type.max_bytes) for type in types if type.is_bounded)


def _round_up(size: int) -> int:
    return -(-size // 128) * 128


def _while_infer(inputs: Sequence[Value], attrs: Attrs) -> list[TensorType]:
    """while(*carries, *consts; cond, body, carries, bound) -> the last carries

    `cond` maps carries and consts to a bool [], `body` to the next carries. `bound` is the largest
    possible number of iterations, None if it is not known; a gradient needs it.
    """
    cond, body, carries = attrs["cond"], attrs["body"], attrs["carries"]
    types = [value.type for value in inputs]
    for graph in (cond, body):
        _require("while", "operands", [value.type for value in graph.inputs], types)
    _require("while", "the condition", [TensorType("bool", ())], [v.type for v in cond.outputs])
    _require("while", "the next carries", types[:carries], [v.type for v in body.outputs])
    return types[:carries]


def _while_regions(node: Node) -> list[Region]:
    inputs = tuple(range(len(node.inputs)))
    carries = range(node.attrs["carries"])
    return [
        Region(node.attrs["cond"], inputs, (None,)),
        Region(node.attrs["body"], inputs, tuple(carries), tuple((at, at) for at in carries)),
    ]


def _while_signature(
    attrs: Attrs, inputs: Sequence[TensorType], outputs: Sequence[TensorType]
) -> Signature:
    given = list(inputs)
    return {"cond": (given, [TensorType("bool", ())]), "body": (given, list(outputs))}


def _while_cost(attrs: Attrs) -> tuple[int, int]:
    """That of `bound` iterations, or of one where it is not known."""
    parts = [attrs[key] for key in ("cond", "body")]
    count = 1 if attrs["bound"] is None else bound_of(attrs["bound"])
    scratch_bytes = sum(_round_up(part.arena_bytes) for part in parts) + _kept(
        parts[1], attrs["carries"]
    )
    scratch_bytes += max(part.scratch_bytes for part in parts)
    return count * sum(part.flops for part in parts), scratch_bytes


_SCAN = Structure(
    _scan_regions, vjp=scan_vjp, signature=_scan_signature, compiles_regions=True, cost=_scan_cost
)
_WHILE = Structure(
    _while_regions,
    vjp=while_vjp,
    signature=_while_signature,
    compiles_regions=True,
    cost=_while_cost,
)
register("scan", _scan_infer, rows=rows.across, structure=_SCAN)
register("while", _while_infer, rows=rows.across, structure=_WHILE)
