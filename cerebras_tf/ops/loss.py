"""Softmax cross-entropy, alone and fused with the projection that computes the logits.

Letters: N tokens, H width, V vocabulary. The fused ops do not store logits [N, V].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from cerebras_tf.errors import GraphError
from cerebras_tf.ir import Node, Size, TensorType, Value
from cerebras_tf.ops import rows
from cerebras_tf.ops.builder import Builder
from cerebras_tf.ops.gradients import Cotangents, no_second_derivative, sum_to
from cerebras_tf.ops.inference import broadcast_shapes, require_same_dtype
from cerebras_tf.ops.registry import Attrs, Flops, Products, register


def _require(holds: bool, rule: str, inputs: Sequence[Value]) -> None:
    if not holds:
        raise GraphError(
            f"softmax cross-entropy: {rule}. Received: {list(inputs)}. Reshape the operands."
        )


def _check_labels(rows: Value, labels: Value, inputs: Sequence[Value]) -> None:
    _require(rows.type.rank == 2, "logits or hidden states must be a matrix", inputs)
    _require(labels.type.rank == 1, "labels must be a vector", inputs)
    _require("int" in labels.dtype, "labels must be integers", inputs)
    counts = (rows.shape[0], labels.shape[0])
    _require(None in counts or counts[0] == counts[1], "one label a row", inputs)


def _softmax_flops(index: int, cost: int) -> Flops:
    """`cost` operations for every logit; logits are operand `index`."""

    def flops(node: Node) -> Size:
        return cost * node.inputs[index].type.size

    return flops


def _sparse_infer(inputs: Sequence[Value], attrs: Attrs) -> list[TensorType]:
    """sparse_softmax_xent(logits [N, V], labels [N]) -> loss [N], lse [N]

    lse = log(sum(exp(logits))) of each row; loss = lse - logits[label].
    """
    logits, labels = inputs
    _check_labels(logits, labels, inputs)
    row = logits.type.with_shape(logits.shape[:1])
    return [row, row]


def _sparse_vjp(b: Builder, node: Node, dys: Cotangents) -> Cotangents:
    _require(dys[1] is None, "only the loss may be differentiated", node.inputs)
    if dys[0] is None:
        return [None, None]
    logits, labels = node.inputs
    return [b.op("sparse_softmax_xent_grad", dys[0], logits, labels, node.outputs[1]), None]


def _sparse_grad_infer(inputs: Sequence[Value], attrs: Attrs) -> list[TensorType]:
    """sparse_softmax_xent_grad(dloss [N], logits [N, V], labels [N], lse [N]) -> dlogits [N, V]

    dlogits = dloss (softmax(logits) - onehot(labels)).
    """
    _check_labels(inputs[1], inputs[2], inputs)
    return [inputs[1].type]


register(
    "sparse_softmax_xent",
    _sparse_infer,
    _sparse_vjp,
    rows=rows.leading(0, 1, outputs=(0, 1)),
    flops=_softmax_flops(0, 13),
)
register(
    "sparse_softmax_xent_grad",
    _sparse_grad_infer,
    no_second_derivative,
    rows=rows.leading(1, 0, 2, 3),
    flops=_softmax_flops(1, 13),
)


def _dense_infer(inputs: Sequence[Value], attrs: Attrs) -> list[TensorType]:
    """softmax_xent(logits [N, V], labels [N, V]) -> loss [N]

    loss = -sum(labels log_softmax(logits)) of each row.
    """
    logits, labels = inputs
    require_same_dtype(inputs)
    _require(logits.type.rank == 2 == labels.type.rank, "both must be matrices", inputs)
    broadcast_shapes([logits.shape, labels.shape])
    return [logits.type.with_shape(logits.shape[:1])]


def _dense_vjp(b: Builder, node: Node, dys: Cotangents) -> Cotangents:
    dloss = dys[0]
    if dloss is None:
        return [None, None]
    logits, labels = node.inputs
    dlogits = b.op("softmax_xent_grad", dloss, logits, labels)
    if labels.constant is not None:
        return [dlogits, None]
    rows = -1 if dloss.shape[0] is None else dloss.shape[0]
    weight = b.op("neg", b.op("reshape", dloss, shape=(rows, 1)))
    return [dlogits, sum_to(b, b.op("mul", weight, b.op("log_softmax", logits)), labels)]


def _dense_grad_infer(inputs: Sequence[Value], attrs: Attrs) -> list[TensorType]:
    """softmax_xent_grad(dloss [N], logits [N, V], labels [N, V]) -> dlogits [N, V]

    dlogits = dloss (softmax(logits) - labels), TensorFlow's formula: rows of labels sum to 1.
    """
    require_same_dtype(inputs)
    return [inputs[1].type]


register(
    "softmax_xent", _dense_infer, _dense_vjp, rows=rows.leading(0, 1), flops=_softmax_flops(0, 15)
)
register(
    "softmax_xent_grad",
    _dense_grad_infer,
    no_second_derivative,
    rows=rows.leading(1, 0, 2),
    flops=_softmax_flops(1, 14),
)


def _check_linear(inputs: Sequence[Value], attrs: Attrs) -> None:
    """Operands hidden [N, H], weight, labels [N] and perhaps bias [V] must fit together."""
    hidden, weight, labels = inputs[:3]
    _check_labels(hidden, labels, inputs)
    _require(weight.type.rank == 2, "the weight must be a matrix", inputs)
    width, vocabulary = weight.shape[::-1] if attrs["transpose_weight"] else weight.shape
    dims = (hidden.shape[1], width)
    _require(None in dims or dims[0] == dims[1], "weight and hidden states differ in width", inputs)
    for bias in inputs[3:]:
        _require(bias.shape in ((vocabulary,), (None,)), "one bias a vocabulary entry", inputs)


def _linear_infer(inputs: Sequence[Value], attrs: Attrs) -> list[TensorType]:
    """linear_softmax_xent(hidden [N, H], weight, labels [N] [, bias [V]]; transpose_weight
    [, compute]) -> loss [N], lse [N]

    Weight is [V, H] with transpose_weight, else [H, V]; logits = hidden weight + bias. With
    compute="bfloat16" here and below, operands of products are rounded to bfloat16.
    """
    _check_linear(inputs, attrs)
    row = inputs[0].type.with_shape(inputs[0].shape[:1])
    return [row, row]


def _linear_vjp(b: Builder, node: Node, dys: Cotangents) -> Cotangents:
    _require(dys[1] is None, "only the loss may be differentiated", node.inputs)
    if dys[0] is None:
        return [None] * len(node.inputs)
    hidden, weight, labels = node.inputs[:3]
    operands = (dys[0], hidden, weight, labels, node.outputs[1], *node.inputs[3:])
    grads = b.multi("linear_softmax_xent_grad", *operands, **node.attrs)
    return [grads[0], grads[1], None, *grads[2:]]


def _linear_grad_infer(inputs: Sequence[Value], attrs: Attrs) -> list[TensorType]:
    """linear_softmax_xent_grad(dloss [N], hidden, weight, labels, lse [N] [, bias];
    transpose_weight [, compute, weight_gradient]) -> dhidden [, dweight] [, dbias]

    With weight_gradient=False, here and below, there is no dweight.
    """
    _check_linear([*inputs[1:4], *inputs[5:]], attrs)
    return [inputs[1].type, *_of_parameters(inputs[2], inputs[5:], attrs)]


def _linear_train_infer(inputs: Sequence[Value], attrs: Attrs) -> list[TensorType]:
    """linear_softmax_xent_train(dloss [N], hidden, weight, labels [, bias]; transpose_weight
    [, compute, weight_gradient]) -> loss [N], dhidden [, dweight] [, dbias]

    Loss and gradients in one pass over the logits, for a dloss that does not depend on the loss.
    """
    _check_linear(inputs[1:], attrs)
    hidden, weight = inputs[1:3]
    row = hidden.type.with_shape(hidden.shape[:1])
    return [row, hidden.type, *_of_parameters(weight, inputs[4:], attrs)]


def _of_parameters(weight: Value, bias: Sequence[Value], attrs: Attrs) -> list[TensorType]:
    """Types of the gradients of weight and bias."""
    trained = [weight] if attrs.get("weight_gradient", True) else []
    return [value.type for value in (*trained, *bias)]


def _linear_flops(first: int, products: int) -> Flops:
    """2 N H V for every matrix product; hidden states are operand `first`, the weight next."""

    def flops(node: Node) -> Size:
        tokens = node.inputs[first].type.with_shape(node.inputs[first].shape[:1]).size
        count = products - (not node.attrs.get("weight_gradient", True))
        return 2 * count * tokens * node.inputs[first + 1].type.size

    return flops


def _linear_products(first: int) -> Products:
    """Tokens, width and vocabulary; hidden states are operand `first`, the weight next."""

    def products(node: Node) -> tuple[Optional[Size], ...]:
        weight = node.inputs[first + 1].shape
        vocabulary = weight[0 if node.attrs["transpose_weight"] else 1]
        return (*node.inputs[first].shape, vocabulary)

    return products


register(
    "linear_softmax_xent",
    _linear_infer,
    _linear_vjp,
    rows=rows.leading(0, 2, outputs=(0, 1)),
    flops=_linear_flops(0, 1),
    products=_linear_products(0),
    rounded=(1,),
)
register(
    "linear_softmax_xent_grad",
    _linear_grad_infer,
    no_second_derivative,
    rows=rows.leading(1, 0, 3, 4, sums=(1, 2)),
    flops=_linear_flops(1, 3),
    products=_linear_products(1),
    rounded=(2,),
)
register(
    "linear_softmax_xent_train",
    _linear_train_infer,
    no_second_derivative,
    rows=rows.leading(1, 0, 3, outputs=(0, 1), sums=(2, 3)),
    flops=_linear_flops(1, 3),
    products=_linear_products(1),
    rounded=(2,),
)
