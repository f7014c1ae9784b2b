"""Parity of softmax cross-entropy with TensorFlow, forward and gradient."""

from __future__ import annotations

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from cerebras_tf.kernels.registry import evaluate
from tests.parity.harness import assert_close, check_parity, integers, normal, oracle_session
from tests.tolerances import TOLERANCES

pytestmark = pytest.mark.tf
raw = tf.raw_ops


def _sparse(x):
    return tf.nn.sparse_softmax_cross_entropy_with_logits(logits=x[0], labels=x[1])


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("shape", [(6, 11), (2, 3, 11), (1, 1)])
def test_sparse_softmax_xent_agrees_with_tensorflow(shape, dtype):
    inputs = [normal(*shape, scale=3.0), integers(*shape[:-1], high=shape[-1], dtype=dtype)]
    check_parity(_sparse, inputs, "loss")


def test_sparse_softmax_xent_of_large_logits_agrees_with_tensorflow():
    logits = np.array([[1e4, 0.0, -1e4], [0.0, 90.0, 89.0]], np.float32)
    check_parity(_sparse, [logits, np.array([2, 1], np.int32)], "loss")


def test_both_outputs_of_sparse_softmax_xent_agree_with_tensorflow():
    def build(x):
        outputs = raw.SparseSoftmaxCrossEntropyWithLogits(features=x[0], labels=x[1])
        return [outputs.loss, outputs.backprop]

    check_parity(build, [normal(6, 11), integers(6, high=11)], "loss", gradient=False)


def test_the_second_output_leaves_no_node_where_nothing_reads_it():
    inputs = [normal(6, 11), integers(6, high=11)]
    graph = check_parity(_sparse, inputs, "loss", gradient=False)
    assert [node.op for node in graph.nodes] == ["sparse_softmax_xent"]


def _probabilities(*shape):
    numbers = np.exp(normal(*shape, seed=3))
    return (numbers / numbers.sum(-1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize("shape", [(6, 11), (1, 1), (3, 200)])
def test_softmax_xent_agrees_with_tensorflow_in_logits_and_labels(shape):
    def build(x):
        return raw.SoftmaxCrossEntropyWithLogits(features=x[0], labels=x[1]).loss

    check_parity(build, [normal(*shape, scale=3.0), _probabilities(*shape)], "loss")


def test_softmax_xent_broadcasts_labels_as_tensorflow_does():
    def build(x):
        outputs = raw.SoftmaxCrossEntropyWithLogits(features=x[0], labels=x[1])
        return [outputs.loss, outputs.backprop]

    check_parity(build, [normal(6, 11), _probabilities(1, 11)], "loss", gradient=False)


def test_label_smoothing_agrees_with_tensorflow():
    def build(x):
        labels = tf.one_hot(x[1], 11, on_value=0.9, off_value=0.01)
        return tf.nn.softmax_cross_entropy_with_logits(labels=labels, logits=x[0])

    check_parity(build, [normal(6, 11), integers(6, high=11)], "loss")


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("transpose_weight", [False, True])
def test_linear_softmax_xent_agrees_with_tensorflows_composition(transpose_weight, with_bias):
    tokens, width, vocabulary = 7, 5, 13
    hidden, bias = normal(tokens, width), normal(vocabulary, seed=2)
    weight = normal(vocabulary, width) if transpose_weight else normal(width, vocabulary)
    labels, dloss = integers(tokens, high=vocabulary), normal(tokens, seed=4)
    extra = [bias] if with_bias else []
    with tf.Graph().as_default(), oracle_session() as session:
        floats = [tf.constant(x) for x in [hidden, weight, *extra]]
        logits = tf.matmul(floats[0], floats[1], transpose_b=transpose_weight)
        logits = logits + floats[2] if with_bias else logits
        loss = _sparse([logits, tf.constant(labels)])
        wanted, grads = session.run([loss, tf.gradients(loss, floats, tf.constant(dloss))])
    attrs = {"transpose_weight": transpose_weight}
    found, lse = evaluate("linear_softmax_xent", [hidden, weight, labels, *extra], attrs)
    assert_close(found, wanted, TOLERANCES["loss"], "loss")
    operands = [dloss, hidden, weight, labels, lse, *extra]
    separate = evaluate("linear_softmax_xent_grad", operands, attrs)
    joined = evaluate("linear_softmax_xent_train", operands[:4] + extra, attrs)
    assert_close(joined[0], wanted, TOLERANCES["loss"], "loss of the joined op")
    for results in (separate, joined[1:]):
        for ours, theirs in zip(results, grads):
            assert_close(ours, theirs, TOLERANCES["gradient"], "gradient")


KERAS = ["BinaryCrossentropy", "CategoricalCrossentropy", "CategoricalHinge", "CosineSimilarity"]
KERAS += ["Hinge", "Huber", "KLDivergence", "LogCosh", "MeanAbsoluteError", "MeanSquaredError"]
KERAS += ["MeanSquaredLogarithmicError", "Poisson", "SquaredHinge", "BinaryFocalCrossentropy"]


@pytest.mark.parametrize("name", KERAS)
def test_keras_losses_agree_with_tensorflow(name):
    def build(x):
        return getattr(tf.keras.losses, name)(reduction="none")(x[0], x[1])

    check_parity(build, [_probabilities(6, 11), _probabilities(6, 11)[::-1].copy()], "loss")


@pytest.mark.parametrize("name", ["BinaryCrossentropy", "CategoricalCrossentropy"])
def test_keras_losses_of_logits_agree_with_tensorflow(name):
    def build(x):
        return getattr(tf.keras.losses, name)(from_logits=True, label_smoothing=0.1)(x[0], x[1])

    check_parity(build, [_probabilities(6, 11), normal(6, 11)], "loss")


VERSION_1 = ["absolute_difference", "hinge_loss", "huber_loss", "log_loss", "mean_squared_error"]
VERSION_1 += ["sigmoid_cross_entropy", "softmax_cross_entropy", "mean_pairwise_squared_error"]


@pytest.mark.parametrize("name", VERSION_1)
def test_losses_of_version_1_agree_with_tensorflow(name):
    def build(x):
        return getattr(tf.compat.v1.losses, name)(x[0], x[1])

    check_parity(build, [_probabilities(6, 11), _probabilities(6, 11)[::-1].copy()], "loss")
