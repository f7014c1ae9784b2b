"""Lowerings of matrix products, bias additions and einsum."""

from __future__ import annotations

import math
import string
from collections.abc import Sequence

from cerebras_tf.capture.elementwise import cast
from cerebras_tf.capture.operations import Operation
from cerebras_tf.capture.registry import Lowering, lowers
from cerebras_tf.errors import UnsupportedOpError
from cerebras_tf.ir import Shape, Size, Value
from cerebras_tf.ops.builder import Builder

# Attribute names of the op types' two transposes; for real numbers an adjoint is a transpose.
_TRANSPOSES = {
    "MatMul": ("transpose_a", "transpose_b"),
    "SparseMatMul": ("transpose_a", "transpose_b"),
    "BatchMatMul": ("adj_x", "adj_y"),
    "BatchMatMulV2": ("adj_x", "adj_y"),
    "BatchMatMulV3": ("adj_x", "adj_y"),
}


@lowers(*_TRANSPOSES)
def _matmul(low: Lowering, op: Operation) -> Sequence[Value]:
    first, second = (bool(op.get_attr(name)) for name in _TRANSPOSES[op.type])
    dtype = low.tf_type(op.outputs[0]).dtype
    a, b = (cast(low.b, x, dtype) for x in low.inputs(op))
    return [low.b.op("matmul", a, b, transpose_a=first, transpose_b=second)]


def channels_last(op: Operation) -> bool:
    """Whether the last axis holds the channels (NHWC, NDHWC), rather than the second (NCHW)."""
    return bool(op.get_attr("data_format").decode().endswith("C"))


def along_channels(low: Lowering, op: Operation, vector: Value, rank: int) -> Value:
    """A vector with one element per channel, shaped to broadcast against a batch of images."""
    if channels_last(op):
        return vector
    return low.b.op("reshape", vector, shape=(vector.type.size,) + (1,) * (rank - 2))


def reduced_axes(op: Operation, rank: int) -> tuple[int, ...]:
    """All axes but the channels'."""
    channel = rank - 1 if channels_last(op) else 1
    return tuple(axis for axis in range(rank) if axis != channel)


@lowers("BiasAdd")
def _bias_add(low: Lowering, op: Operation) -> Sequence[Value]:
    x, bias = low.inputs(op)
    return [low.b.op("add", x, along_channels(low, op, bias, x.type.rank))]


@lowers("BiasAddGrad")
def _bias_add_grad(low: Lowering, op: Operation) -> Sequence[Value]:
    (dy,) = low.inputs(op)
    return [low.b.op("sum", dy, axes=reduced_axes(op, dy.type.rank), keepdims=False)]


@lowers("Einsum")
def _einsum(low: Lowering, op: Operation) -> Sequence[Value]:
    equation = op.get_attr("equation").decode()
    operands = low.inputs(op)
    terms, result = _expand(equation, [value.type.rank for value in operands])
    if len(operands) > 2 or any(len(set(term)) < len(term) for term in [*terms, result]):
        raise UnsupportedOpError(
            f"Einsum: at most two operands and no label twice in one of them. "
            f"Received: {equation!r}. Write it as several einsums, or with tf.linalg.diag_part."
        )
    others = [*reversed(terms)] if len(terms) == 2 else [""]
    sized = [
        _sum_out(low.b, x, term, result + other) for x, term, other in zip(operands, terms, others)
    ]
    if len(sized) == 1:
        value, term = sized[0]
        return [_transpose(low.b, value, term, result)]
    return [_product(low.b, *sized[0], *sized[1], result)]


def _expand(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """Labels of every operand and of the result, an ellipsis as labels of its own."""
    left, _, result = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    spare = [letter for letter in string.printable if letter.isalnum() and letter not in equation]
    widths = [rank - len(term.replace("...", "")) for term, rank in zip(terms, ranks)]
    longest = max([w for w, term in zip(widths, terms) if "..." in term], default=0)
    letters = "".join(spare[:longest])
    expanded = [
        term.replace("...", letters[longest - width :]) for term, width in zip(terms, widths)
    ]
    return expanded, result.replace("...", letters)


def _sum_out(b: Builder, x: Value, term: str, kept: str) -> tuple[Value, str]:
    """Sums the axes whose labels occur nowhere else."""
    axes = tuple(axis for axis, label in enumerate(term) if label not in kept)
    if not axes:
        return x, term
    total = b.op("sum", x, axes=axes, keepdims=False)
    return total, "".join(label for label in term if label in kept)


def _transpose(b: Builder, x: Value, term: str, wanted: str) -> Value:
    if term == wanted:
        return x
    return b.op("transpose", x, permutation=tuple(term.index(label) for label in wanted))


def _size(dims: Shape) -> Size:
    known = [dim for dim in dims if dim is not None]
    return math.prod(known) if len(known) == len(dims) else -1


def _product(b: Builder, x: Value, x_term: str, y: Value, y_term: str, result: str) -> Value:
    shared = [label for label in x_term if label in y_term]
    batch = "".join(label for label in result if label in shared)
    inner = "".join(label for label in shared if label not in result)
    x_free = "".join(label for label in result if label in x_term and label not in batch)
    y_free = "".join(label for label in result if label in y_term and label not in batch)
    if result == batch + y_free + x_free and x_free and y_free:
        x, x_term, x_free, y, y_term, y_free = y, y_term, y_free, x, x_term, x_free
    x_free_dims = [x.shape[x_term.index(label)] for label in x_free]
    y_free_dims = [y.shape[y_term.index(label)] for label in y_free]
    x, x_turned = _as_matrices(b, x, x_term, batch, x_free, inner)
    y, y_straight = _as_matrices(b, y, y_term, batch, y_free, inner)
    product = b.op("matmul", x, y, transpose_a=x_turned, transpose_b=not y_straight)
    if len(x_free) != 1 or len(y_free) != 1:
        leading = [-1 if dim is None else dim for dim in product.shape[: product.type.rank - 2]]
        dims = [-1 if dim is None else dim for dim in [*x_free_dims, *y_free_dims]]
        product = b.op("reshape", product, shape=(*leading, *dims))
    return _transpose(b, product, batch + x_free + y_free, result)


def _as_matrices(
    b: Builder, x: Value, term: str, batch: str, free: str, inner: str
) -> tuple[Value, bool]:
    """x as [batch..., free, inner], or as [batch..., inner, free] and True.

    Of the two the one that needs no transpose is taken, else the one that keeps the last axis.
    """
    # Operands with fewer broadcast axes lack the first batch labels.
    own = "".join(label for label in batch if label in term)
    orders = [own + free + inner, own + inner + free]
    if orders[0] != term and (orders[1] == term or orders[0][-1:] != term[-1:] == orders[1][-1:]):
        turned, order = True, orders[1]
    else:
        turned, order = False, orders[0]
    x = _transpose(b, x, term, order)
    if len(free) != 1 or len(inner) != 1:
        groups = [inner, free] if turned else [free, inner]
        sizes = []
        start = len(own)
        for group in groups:
            sizes.append(_size(x.shape[start : start + len(group)]))
            start += len(group)
        leading = [-1 if dim is None else dim for dim in x.shape[: len(own)]]
        x = b.op("reshape", x, shape=(*leading, *sizes))
    return x, turned
