"""Lowering of Einsum to transposes, reshapes and one matrix product.

A label is batch (in both operands and the result), contracted (in both operands only), free (in one
operand and the result) or summed (in one operand only). Diagonals (a label twice in one operand)
are not lowered: no product of matrices makes them.
"""

from __future__ import annotations

import math
import string
from collections.abc import Sequence

from cerebras_tf.capture.operations import Operation
from cerebras_tf.capture.registry import Lowering, lowers
from cerebras_tf.errors import UnsupportedOpError
from cerebras_tf.ir import Shape, Size, Value
from cerebras_tf.ops.builder import Builder


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
