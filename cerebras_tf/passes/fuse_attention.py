"""Fuses scaled dot-product attention into one op that does not store its scores.

Before: `matmul(softmax(matmul(q, k, transpose_b) * scale + mask), v)` on [B, A, S, D]; after:
`attention(q, k, v [, bias] [, step, seeds]; scale, causal, ...)` on [B, S, A, D], between
transposes. A causal mask becomes an attribute; dropout between softmax and product is fused, and
draws the same numbers. The pass does not fire where the weights or the random numbers have other
readers, or where the mask is trained. Source: Vaswani et al., Attention Is All You Need (2017),
equation 1.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, Optional

from cerebras_tf.ir import Graph, Node, Shape, Value
from cerebras_tf.ops import Builder
from cerebras_tf.passes.causal_mask import is_causal
from cerebras_tf.passes.rewrite import gradient_operands, rewrite

_SWAP = (0, 2, 1, 3)


def fuse_attention(graph: Graph, variables: set[Value]) -> None:
    """Replaces in place, before differentiation.

    Args:
        variables: values of trained variables; a mask must not depend on them, nor on other values
            that gradients are taken by.
    """
    users = graph.users()
    trained = set(variables)
    trained.update(value for node in graph.nodes if node.op == "gradient" for value in node.inputs)
    for node in graph.nodes:
        if any(value in trained for value in node.inputs):
            trained.update(node.outputs)
    wanted = set(graph.outputs) | gradient_operands(graph)
    found = {}
    causal = functools.lru_cache(maxsize=None)(is_causal)  # layers share one mask
    for node in graph.nodes:
        if node.op == "matmul" and not node.attrs["transpose_a"] and not node.attrs["transpose_b"]:
            match = _match(node, users, trained, wanted, causal)
            if match is not None:
                found[node] = match
    rewrite(graph, lambda b, node: [_emit(b, found[node])] if node in found else None, fold=False)


def group_heads(graph: Graph) -> None:
    """Lets attention read each head of keys and values for a group of heads of the query, in place.

    Before: `%r = reshape(broadcast_to(%k))` repeats the heads of `%k: [B,T,G,D]` to [B,T,A,D], also
    between transposes, and so for %v; after: `attention(%q, %k, %v)`. The pass runs before
    differentiation, and does not fire where a gradient is taken by a repeated value.
    """
    kept = gradient_operands(graph)

    def grouped(b: Builder, node: Node) -> None:
        if node.op != "attention":
            return
        found = [_repeated_heads(value, kept) for value in node.inputs[1:3]]
        if all(found) and found[0][1:] == found[1][1:]:  # type: ignore[index]
            shape, swapped = found[0][1:]  # type: ignore[index]
            for at, (source, *_) in enumerate(found, 1):  # type: ignore[misc]
                narrow = b.op("reshape", source, shape=shape)
                node.inputs[at] = _swapped(b, narrow) if swapped else narrow

    rewrite(graph, grouped, fold=False)


def _repeated_heads(value: Value, kept: set[Value]) -> Optional[tuple[Value, Shape, bool]]:
    """What [B,T,A,D] repeats, its shape without the axis of copies, and whether T and G swap."""
    made, axis, inner = value.node, 2, {value}
    swapped = made is not None and made.op == "transpose"
    if made is not None and swapped:
        if tuple(made.attrs["permutation"]) != _SWAP:
            return None
        value, axis = made.inputs[0], 1
        made = value.node
    copies = made.inputs[0] if made is not None and made.op == "reshape" else value
    below = copies.node
    if below is None or below.op != "broadcast_to" or {*inner, value, copies} & kept:
        return None
    source = below.inputs[0]
    if source.type.rank != 5 or copies.type.rank != 5 or source.shape[axis + 1] != 1:
        return None
    narrow = (*source.shape[: axis + 1], *source.shape[axis + 2 :])
    spread = (*copies.shape[: axis + 1], *copies.shape[axis + 2 :])
    others = (*value.shape[:axis], *value.shape[axis + 1 :])
    if narrow != spread or None in narrow or (*narrow[:axis], *narrow[axis + 1 :]) != others:
        return None
    return source, narrow, swapped


class _Found(NamedTuple):
    q: Value
    k: Value
    v: Value
    bias: Optional[Value]
    scale: float
    causal: bool
    dropout: Optional[DropoutMatch]


def _match(
    node: Node,
    users: dict[Value, list[Node]],
    trained: set[Value],
    wanted: set[Value],
    hides_later: Callable[[Value], bool],
) -> Optional[_Found]:
    """The attention that ends in a product, or None."""
    weights, value = node.inputs
    if value.type.rank != 4 or not value.type.is_bounded:
        return None
    dropout = match_dropout(weights, users, wanted)
    bypassed = [weights] if dropout is None else [weights, dropout.x]
    softmax = bypassed[-1].node
    if softmax is None or softmax.op != "softmax":
        return None
    if any(item in wanted or len(users.get(item, ())) != 1 for item in bypassed):
        return None
    scores, scale = softmax.inputs[0], 1.0
    bias: Optional[Value] = None
    causal = False
    while True:
        made = scores.node
        if made is None or scores in wanted:
            return None
        if made.op == "matmul":
            break
        constant = _scalar(made)
        if made.op == "div" and constant == 0:
            return None
        if made.op in ("mul", "div") and constant is not None:
            scores = made.inputs[0] if made.inputs[1].constant is not None else made.inputs[1]
            scale *= constant if made.op == "mul" else 1.0 / constant
        elif made.op == "add" and scale == 1.0:
            scores, mask = _split_mask(made)
            if mask is None or mask in trained:
                return None
            if scores.shape == made.output.shape and hides_later(mask):
                causal = True
            elif bias is None:
                bias = mask
            else:
                return None
        else:
            return None
    if made.attrs["transpose_a"] or not _fits(made, value):
        return None
    key = made.inputs[1]
    if not made.attrs["transpose_b"]:
        below = key.node
        if below is None or below.op != "transpose":
            return None
        if tuple(below.attrs["permutation"]) != (0, 1, 3, 2):
            return None
        key = below.inputs[0]
    return _Found(made.inputs[0], key, value, bias, scale, causal, dropout)


def _fits(scores: Node, value: Value) -> bool:
    q, k = scores.inputs
    shapes = [v.shape for v in (q, k, value)]
    if any(len(shape) != 4 for shape in shapes):
        return False
    if shapes[0][3] != shapes[2][3]:
        return False
    return q.type.is_bounded and shapes[0][:2] == shapes[1][:2] == shapes[2][:2]


def _scalar(node: Node) -> Optional[float]:
    for value in node.inputs[1:] if node.op == "div" else node.inputs:
        if scalar(value) is not None:
            return scalar(value)
    return None


def _split_mask(node: Node) -> tuple[Value, Optional[Value]]:
    """(scores, mask) of an addition: the mask is broadcast or constant."""
    first, second = node.inputs
    if second.shape != node.output.shape or second.constant is not None:
        return first, second
    if first.shape != node.output.shape or first.constant is not None:
        return second, first
    return first, second if second.node is None or second.node.op != "matmul" else None


def _emit(b: Builder, found: _Found) -> Value:
    bias, dropout = found.bias, found.dropout
    operands = [_swapped(b, value) for value in found[:3]]
    if bias is not None:
        rank = bias.type.rank
        if rank < 4:
            bias = b.op("reshape", bias, shape=(1,) * (4 - rank) + bias.shape)
        operands.append(bias)
    attrs = {"scale": found.scale, "causal": found.causal}
    if dropout is not None:
        operands.extend(dropout.drawn_from)
        attrs.update(dropout.attrs)
    out, _ = b.multi("attention", *operands, **attrs)
    return b.op("transpose", out, permutation=_SWAP)


def _swapped(b: Builder, value: Value) -> Value:
    """[B, A, S, D] as [B, S, A, D]; an inverse transpose is cancelled."""
    node = value.node
    if node is not None and node.op == "transpose" and tuple(node.attrs["permutation"]) == _SWAP:
        return node.inputs[0]
    return b.op("transpose", value, permutation=_SWAP)


class DropoutMatch(NamedTuple):
    """The operand of a dropout, its step and seeds, and the attributes that `attention` takes."""

    x: Value
    drawn_from: tuple[Value, Value]
    attrs: dict[str, Any]


def match_dropout(
    dropped: Value, users: dict[Value, list[Node]], wanted: set[Value]
) -> Optional[DropoutMatch]:
    """The dropout that computes a value, or None.

    TensorFlow 2 computes `select(greater_equal(u, rate), mul(x, scale), 0)`, and earlier versions
    `mul(mul(x, scale), cast(greater_equal(u, rate)))`.

    Args:
        dropped: any value.
        users: nodes that read each value.
        wanted: values that must not be removed.
    """
    node = dropped.node
    if node is None or dropped.dtype != "float32":
        return None
    if node.op == "select" and scalar(node.inputs[2]) == 0.0:
        keep, kept = node.inputs[:2]
        inner = [keep, kept]
    elif node.op == "mul":
        casts = [value for value in node.inputs if value.node and value.node.op == "cast"]
        if len(casts) != 1:
            return None
        (cast,) = casts
        (kept,) = (value for value in node.inputs if value is not cast)
        keep = _maker(cast).inputs[0]
        inner = [keep, kept, cast]
    else:
        return None
    x, kept_scale = _unscaled(kept)
    compared = keep.node
    if compared is None or compared.op != "greater_equal":
        return None
    numbers, rate = compared.inputs[0], scalar(compared.inputs[1])
    drawn = numbers.node
    if drawn is None or drawn.op != "random_uniform" or rate is None or not 0 <= rate < 1:
        return None
    if drawn.attrs["dtype"] != "float32" or not numbers.shape == x.shape == dropped.shape:
        return None
    inner = [value for value in (*inner, numbers) if value is not x]
    if any(value in wanted or len(users.get(value, ())) != 1 for value in inner):
        return None
    step, seeds = drawn.inputs
    return DropoutMatch(x, (step, seeds), {"rate": rate, "kept_scale": kept_scale})


def _unscaled(value: Value) -> tuple[Value, float]:
    """x and c of a product x c; else the value itself and 1."""
    node = value.node
    if node is not None and node.op == "mul":
        for x, c in (node.inputs, node.inputs[::-1]):
            factor = scalar(c)
            if factor is not None:
                return x, factor
    return value, 1.0


def scalar(value: Value) -> Optional[float]:
    """The only element of a constant, or None."""
    constant = value.constant
    return float(constant.reshape(())) if constant is not None and constant.size == 1 else None


def _maker(value: Value) -> Node:
    assert value.node is not None
    return value.node
