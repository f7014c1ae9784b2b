"""Cross-entropy ops: types, refusals, cost, and gradients against central differences."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.errors import GraphError
from cerebras_tf.ir import Graph, TensorType
from cerebras_tf.ops import Builder, lookup
from tests.messages import raises
from tests.ops.differences import check_vjp

RANDOM = np.random.default_rng(9)
TOKENS, WIDTH, VOCABULARY = 6, 4, 7
LOGITS = RANDOM.standard_normal((TOKENS, VOCABULARY))
LABELS = RANDOM.integers(0, VOCABULARY, TOKENS)


def test_sparse_softmax_xent_gradient_is_the_derivative():
    check_vjp("sparse_softmax_xent", [LOGITS, LABELS])


def test_softmax_xent_gradient_is_the_derivative_where_labels_are_fixed():
    labels = np.exp(LOGITS[::-1])
    labels /= labels.sum(-1, keepdims=True)
    check_vjp("softmax_xent", [LOGITS, labels])


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("transpose", [False, True])
def test_linear_softmax_xent_gradient_is_the_derivative(transpose, with_bias):
    weight = RANDOM.standard_normal((VOCABULARY, WIDTH) if transpose else (WIDTH, VOCABULARY))
    operands = [RANDOM.standard_normal((TOKENS, WIDTH)), weight, LABELS]
    if with_bias:
        operands.append(RANDOM.standard_normal(VOCABULARY))
    check_vjp("linear_softmax_xent", operands, transpose_weight=transpose)


def _values(*types):
    b = Builder(Graph())
    return b, [b.graph.add_input("x", TensorType(dtype, shape)) for dtype, shape in types]


def test_linear_softmax_xent_train_gives_loss_and_gradients_of_the_operands():
    b, (dloss, h, w, labels, bias) = _values(
        ("float32", (6,)),
        ("float32", (6, 4)),
        ("float32", (7, 4)),
        ("int32", (6,)),
        ("float32", (7,)),
    )
    found = b.multi("linear_softmax_xent_train", dloss, h, w, labels, bias, transpose_weight=True)
    assert [value.shape for value in found] == [(6,), (6, 4), (7, 4), (7,)]


@pytest.mark.parametrize(
    ("logits", "labels"),
    [
        (("float32", (6, 7)), ("float32", (6,))),
        (("float32", (6, 7)), ("int32", (5,))),
        (("float32", (6, 7)), ("int32", (6, 1))),
        (("float32", (2, 3, 7)), ("int32", (2,))),
    ],
)
def test_labels_that_do_not_fit_are_refused(logits, labels):
    b, values = _values(logits, labels)
    with raises(GraphError, "softmax cross-entropy"):
        b.multi("sparse_softmax_xent", *values)


def test_a_weight_of_another_width_is_refused():
    b, values = _values(("float32", (6, 4)), ("float32", (7, 4)), ("int32", (6,)))
    b.multi("linear_softmax_xent", *values, transpose_weight=True)
    with raises(GraphError, "width"):
        b.multi("linear_softmax_xent", *values, transpose_weight=False)


def test_flops_of_the_joined_gradient_count_three_products():
    b, (dloss, *values) = _values(
        ("float32", (6,)), ("float32", (6, 4)), ("float32", (4, 7)), ("int32", (6,))
    )
    loss, lse = b.multi("linear_softmax_xent", *values, transpose_weight=False)
    grads = b.multi("linear_softmax_xent_grad", dloss, *values, lse, transpose_weight=False)
    assert lookup("linear_softmax_xent").flops(loss.node) == 2 * 6 * 4 * 7
    assert lookup("linear_softmax_xent_grad").flops(grads[0].node) == 3 * 2 * 6 * 4 * 7
