"""Matrix multiplication, batched, with NumPy's broadcasting of leading dimensions.

Letters: M, K, N sizes of one product; ... leading dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional, TypeVar

from cerebras_tf.errors import GraphError
from cerebras_tf.ir import Node, Shape, Size, TensorType, Value
from cerebras_tf.ops import rows
from cerebras_tf.ops.builder import Builder
from cerebras_tf.ops.gradients import sum_to
from cerebras_tf.ops.inference import broadcast_shapes, require_same_dtype
from cerebras_tf.ops.registry import Attrs, register

_T = TypeVar("_T")


def product_pairs(operands: Sequence[_T], lefts: int) -> list[tuple[_T, _T]]:
    """Left and right operands of the products of a `grouped_matmul`.

    Args:
        operands: the left ones, `lefts` of them, then the right ones. A single one is an operand of
            all products.
    """
    left, right = list(operands[:lefts]), list(operands[lefts:])
    count = max(len(left), len(right))
    return list(zip(left * (count // len(left)), right * (count // len(right))))


def _sides(shape: Shape, transpose: bool) -> tuple[Optional[Size], Optional[Size]]:
    """Rows and columns of an operand as it enters the product."""
    return (shape[-1], shape[-2]) if transpose else (shape[-2], shape[-1])


def _infer(inputs: Sequence[Value], attrs: Attrs) -> list[TensorType]:
    """matmul(a [..., M, K], b [..., K, N]; transpose_a=False, transpose_b=False [, compute])
    -> [..., M, N]

    With compute="bfloat16", float32 operands are rounded to bfloat16, and the result is float32.
    """
    a, b = inputs
    if attrs.get("compute") is None:
        require_same_dtype(inputs)
    elif not {a.dtype, b.dtype} <= {"float32", "bfloat16"}:
        raise GraphError(
            f"matmul: operands must be float32 or bfloat16 with compute. Received: {a!r}, {b!r}. "
            "Cast both to float32."
        )
    if a.type.rank < 2 or b.type.rank < 2:
        raise GraphError(
            f"matmul: operands must have at least two dimensions. Received: {a!r}, {b!r}. "
            "Reshape the vector to a matrix."
        )
    rows, inner = _sides(a.shape, attrs.get("transpose_a", False))
    inner_b, columns = _sides(b.shape, attrs.get("transpose_b", False))
    if None not in (inner, inner_b) and inner != inner_b:
        raise GraphError(
            f"matmul: the summed dimensions must be equal. Received: {a!r}, {b!r}, {attrs}. "
            "Transpose or reshape an operand."
        )
    leading = broadcast_shapes([a.shape[:-2], b.shape[:-2]])
    dtype = a.dtype if attrs.get("compute") is None else "float32"
    return [TensorType(dtype, (*leading, rows, columns))]


def _as_matrix(b: Builder, x: Value) -> Value:
    """All dimensions but the last as one."""
    leading = x.shape[:-1]
    rows = -1 if None in leading else x.type.with_shape(leading).size
    return b.op("reshape", x, shape=(rows, x.shape[-1]))


def _vjp(b: Builder, node: Node, dys: list[Optional[Value]]) -> list[Optional[Value]]:
    """For z = x y: dx = dz y^T and dy = x^T dz, with transposes and broadcasting."""
    x, y = node.inputs
    dz = dys[0]
    if dz is None:
        return [None, None]
    transpose_x = bool(node.attrs.get("transpose_a", False))
    transpose_y = bool(node.attrs.get("transpose_b", False))
    if transpose_x:
        dx = b.op("matmul", y, dz, transpose_a=transpose_y, transpose_b=True)
    else:
        dx = b.op("matmul", dz, y, transpose_a=False, transpose_b=not transpose_y)
    dx = sum_to(b, dx, x)
    if y.type.rank == 2 and x.type.rank > 2 and not transpose_x and x.shape[-1] is not None:
        # One product over all rows instead of a sum of products.
        x, dz, transpose_x = _as_matrix(b, x), _as_matrix(b, dz), False
    if transpose_y:
        dy = b.op("matmul", dz, x, transpose_a=True, transpose_b=transpose_x)
    else:
        dy = b.op("matmul", x, dz, transpose_a=not transpose_x, transpose_b=False)
    return [dx, sum_to(b, dy, y)]


def _flops(node: Node) -> Size:
    return _product_flops(node, node.inputs[0], node.output)


def _product_flops(node: Node, a: Value, product: Value) -> Size:
    _, inner = _sides(a.shape, node.attrs.get("transpose_a", False))
    return 2 * product.type.size * (0 if inner is None else inner)


def _products(node: Node) -> tuple[Optional[Size], ...]:
    """M, K, N; where b is a matrix, leading dimensions count as rows of one product."""
    a, b = node.inputs
    turned = bool(node.attrs.get("transpose_a", False))
    rows, inner = _sides(a.shape, turned)
    columns = _sides(b.shape, node.attrs.get("transpose_b", False))[1]
    if b.type.rank == 2 and not turned:
        for dim in a.shape[:-2]:
            rows = None if rows is None or dim is None else rows * dim
    return rows, inner, columns


register(
    "matmul",
    _infer,
    _vjp,
    rows=rows.matmul,
    zeros=(0, 1),
    flops=_flops,
    products=_products,
    rounded=(0, 1),
)


def _infer_group(inputs: Sequence[Value], attrs: Attrs) -> list[TensorType]:
    """grouped_matmul(a ..., b ...; lefts, summed [, attributes of matmul]) -> products, or their
    sum

    One operand is shared by all products, or they are summed.
    """
    lefts, summed = attrs["lefts"], attrs["summed"]
    rights = len(inputs) - lefts
    if lefts < 1 or rights < 1 or (lefts != rights if summed else 1 not in (lefts, rights)):
        raise GraphError(
            "grouped_matmul: products must share an operand, or be summed. "
            f"Received: {lefts} left and {rights} right operands, summed={summed}. Pair them."
        )
    found = [_infer(pair, attrs)[0] for pair in product_pairs(inputs, lefts)]
    if summed and any(type != found[0] for type in found):
        raise GraphError(
            f"grouped_matmul: products that are summed must have one type. Received: {found}. "
            "Add them separately."
        )
    return found[:1] if summed else found


def _group_flops(node: Node) -> Size:
    pairs = product_pairs(node.inputs, node.attrs["lefts"])
    products = node.outputs * (len(pairs) // len(node.outputs))
    total: Size = 0
    for (a, _), product in zip(pairs, products):
        total += _product_flops(node, a, product)
    return total


register("grouped_matmul", _infer_group, rows=rows.across, differentiable=False, flops=_group_flops)
