"""Plain cross-entropy: the formula written out, gradients by central differences, bad labels."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cerebras_tf.errors import DataError
from cerebras_tf.kernels.registry import PLAIN
from tests.differences import gradient_of

RANDOM = np.random.default_rng(8)
LOGITS = RANDOM.standard_normal((4, 6))
LABELS = np.array([0, 5, 2, 2])
DLOSS = RANDOM.standard_normal(4)


def test_sparse_loss_is_minus_the_log_of_the_label_s_probability():
    loss, lse = PLAIN["sparse_softmax_xent"](LOGITS, LABELS)
    for row, label in enumerate(LABELS):
        total = math.fsum(math.exp(v) for v in LOGITS[row])
        assert math.isclose(lse[row], math.log(total))
        assert math.isclose(loss[row], -math.log(math.exp(LOGITS[row, label]) / total))


def test_dense_loss_of_one_hot_labels_is_the_sparse_loss():
    dense = PLAIN["softmax_xent"](LOGITS, np.eye(6)[LABELS])
    np.testing.assert_allclose(dense, PLAIN["sparse_softmax_xent"](LOGITS, LABELS)[0])


def test_gradients_equal_central_differences():
    _, lse = PLAIN["sparse_softmax_xent"](LOGITS, LABELS)
    found = PLAIN["sparse_softmax_xent_grad"](DLOSS, LOGITS, LABELS, lse)
    expected = gradient_of(
        lambda v: (PLAIN["sparse_softmax_xent"](v, LABELS)[0] * DLOSS).sum(), LOGITS
    )
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)
    dense = RANDOM.random((4, 6))
    dense /= dense.sum(1, keepdims=True)
    found = PLAIN["softmax_xent_grad"](DLOSS, LOGITS, dense)
    expected = gradient_of(lambda v: (PLAIN["softmax_xent"](v, dense) * DLOSS).sum(), LOGITS)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("transpose_weight", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_projected_loss_and_gradients_equal_those_of_its_logits(transpose_weight, biased):
    h, weight = RANDOM.standard_normal((4, 3)), RANDOM.standard_normal((3, 6))
    bias = [RANDOM.standard_normal(6)] if biased else []
    given = weight.T if transpose_weight else weight
    attrs = {"transpose_weight": transpose_weight}

    def loss(h, given, *bias):
        return (PLAIN["linear_softmax_xent"](h, given, LABELS, *bias, **attrs)[0] * DLOSS).sum()

    found = PLAIN["linear_softmax_xent_train"](DLOSS, h, given, LABELS, *bias, **attrs)
    logits = h @ weight + (bias[0] if biased else 0)
    np.testing.assert_allclose(found[0], PLAIN["sparse_softmax_xent"](logits, LABELS)[0])
    operands = [h, given, *bias]
    for i, gradient in enumerate(found[1:]):
        expected = gradient_of(
            lambda v, i=i: loss(*operands[:i], v, *operands[i + 1 :]), operands[i]
        )
        np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("label", [-1, 6])
def test_a_label_outside_the_vocabulary_is_named(label):
    with pytest.raises(DataError, match=rf"\[0, 6\)\. Received: {label} at position 1 of 4"):
        PLAIN["sparse_softmax_xent"](LOGITS, np.array([0, label, 2, 2]))
