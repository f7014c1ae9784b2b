"""The zoo's models and Keras's, captured and compiled once for batches of any size to a bound."""

from __future__ import annotations

import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

from cerebras_tf.ir import Dim, TensorType
from tests.e2e import zoo_models as zoo
from tests.e2e.symbolic_steps import check_sizes, training_steps

pytestmark = pytest.mark.tf
v1 = tf.compat.v1
DROPOUT = {"attention_dropout_rate": 0.1, "dropout_rate": 0.1}
B = Dim.symbol("B", 6)
S, T = Dim.symbol("S", 12), Dim.symbol("T", 12)
P = Dim.symbol("P", 4)


def ids(*dims):
    return TensorType("int32", dims)


def tokens(*names, batch=3):
    return {name: ids(batch, S) for name in names}


def bert_features(batch):
    masked = {name: ids(batch, P) for name in ("masked_lm_positions", "masked_lm_ids")}
    weights = {"masked_lm_weights": TensorType("float32", (batch, P))}
    return {**tokens("input_ids", "input_mask", "segment_ids", batch=batch), **masked, **weights}


def test_bert_of_any_length_and_number_of_masked_words_and_rows():
    model = zoo.bert(disable_nsp=False, **DROPOUT)
    captured = training_steps(model, bert_features(B), ids(B, 1))
    check_sizes(captured, {"B": 2, "S": 5, "P": 1}, {"B": 6, "S": 12, "P": 4})


def test_bert_as_a_classifier_of_any_length():
    features = tokens("input_ids", "input_mask", "segment_ids")
    captured = training_steps(zoo.tuned("classifier"), features, ids(3))
    check_sizes(captured, {"S": 1}, {"S": 7})


def test_gpt_of_any_length_whose_attention_is_fused_and_causal():
    captured = training_steps(zoo.gpt(**DROPOUT), tokens("input_ids", "input_mask"), ids(3, S))
    graph = check_sizes(captured, {"S": 5}, {"S": 12})
    fused = [node for node in graph.nodes if node.op == "attention"]
    assert [node.attrs["causal"] for node in fused] == [True, True]
    assert not {"softmax", "band_part", "sparse_softmax_xent"} & {node.op for node in graph.nodes}


def test_gpt_with_rotary_positions_of_any_length():
    features = tokens("input_ids", "input_mask")
    check_sizes(training_steps(zoo.gptj(), features, ids(3, S)), {"S": 5}, {"S": 12})


def test_transformer_of_any_two_lengths():
    names = ("encoder_input_ids", "encoder_mask")
    features = tokens(*names)
    features.update({name: ids(3, T) for name in ("decoder_input_ids", "decoder_mask")})
    features["loss_scale"] = TensorType("float32", (3, T))
    model = zoo.transformer(label_smoothing=0.1)
    captured = training_steps(model, features, ids(3, T))
    check_sizes(captured, {"S": 5, "T": 12}, {"S": 12, "T": 1})


def keras_model(network):
    """A model_fn of a Keras network whose logits are of 5 classes, trained by Adam."""

    def model_fn(features, labels, mode, params):
        logits = network()(features["x"], training=True)
        loss = tf.keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction=tf.keras.losses.Reduction.SUM_OVER_BATCH_SIZE
        )(labels, logits)
        loss += v1.losses.softmax_cross_entropy(tf.one_hot(labels, 5), logits, label_smoothing=0.1)
        optimizer = v1.train.AdamOptimizer(0.01)
        with tf.control_dependencies(v1.get_collection(v1.GraphKeys.UPDATE_OPS)):
            train_op = optimizer.minimize(loss, v1.train.get_global_step())
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

    return model_fn


def _convolutions():
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            layers.Conv2D(4, 3, padding="same", activation="relu"),
            layers.BatchNormalization(),
            layers.MaxPool2D(),
            layers.Conv2D(4, 3, strides=2, padding="same"),
            layers.GlobalAveragePooling2D(),
            layers.Dropout(0.2),
            layers.Dense(5),
        ]
    )


def _recurrence():
    layers = tf.keras.layers
    whole = [layers.Reshape((8, 24)), layers.LSTM(4, unroll=True), layers.Dense(5)]
    return tf.keras.Sequential(whole)


def _attention():
    layers = tf.keras.layers
    x = tf.keras.Input((8, 8, 3))
    rows = layers.Reshape((8, 24))(x)
    y = layers.LayerNormalization()(layers.MultiHeadAttention(2, 4)(rows, rows) + rows)
    y = layers.Dense(5)(layers.GlobalAveragePooling1D()(y))
    return tf.keras.Model(x, y)


@pytest.mark.parametrize("network", [_convolutions, _recurrence, _attention])
def test_keras_model_of_any_batch_size(network):
    features = {"x": TensorType("float32", (B, 8, 8, 3))}
    captured = training_steps(keras_model(network), features, ids(B))
    check_sizes(captured, {"B": 1}, {"B": 5})
