"""Compares 20 steps on the wafer with 20 steps of TensorFlow on the host: whole models."""

from __future__ import annotations

import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

from tests.e2e import models
from tests.e2e.host_and_wafer import check_parity, is_rounding

pytestmark = pytest.mark.tf
v1 = tf.compat.v1


def test_mlp_of_v1_layers_trains_as_on_the_host(tmp_path):
    host, _ = check_parity(models.classifier(models.mlp), models.points(), tmp_path)
    assert host.losses[-1] < host.losses[0]


def test_batch_normalization_and_dropout_of_nothing_train_as_on_the_host(tmp_path):
    model_fn = models.classifier(models.batch_norm_mlp)
    host, _ = check_parity(model_fn, models.points(), tmp_path)
    moving = [name for name in host.variables if name.endswith("moving_mean")]
    assert len(moving) == 2
    assert all(abs(host.variables[name]).max() > 0 for name in moving)


def test_dropout_with_seeds_draws_what_the_host_draws(tmp_path):
    check_parity(models.classifier(models.dropout_mlp), models.points(), tmp_path)


def test_convolutions_and_pooling_train_as_on_the_host(tmp_path):
    check_parity(models.classifier(models.conv_net), models.images(), tmp_path)


def test_normalized_and_transposed_convolutions_train_as_on_the_host(tmp_path):
    def logits(features, training):
        hidden = v1.layers.conv2d(features, 6, 3, padding="same", use_bias=False, strides=2)
        hidden = tf.nn.relu(v1.layers.batch_normalization(hidden, training=training))
        hidden = v1.layers.conv2d_transpose(hidden, 5, 3, strides=2, padding="same")
        hidden = tf.keras.layers.DepthwiseConv2D(3)(tf.nn.relu(hidden))
        return v1.layers.dense(tf.reduce_mean(hidden, [1, 2]), 4)

    check_parity(models.classifier(logits), models.images(), tmp_path)


def test_batches_of_unknown_size_train_as_on_the_host(tmp_path):
    def model_fn(features, labels, mode, params):
        features, labels = (
            v1.placeholder_with_default(x, [None, *x.shape[1:]]) for x in (features, labels)
        )
        return models.language_model()(features, labels, mode, params)

    check_parity(model_fn, models.tokens(), tmp_path)


def test_small_gpt_trains_as_on_the_host(tmp_path):
    host, _ = check_parity(models.language_model(), models.tokens(), tmp_path)
    left_out = {name for name, peak in host.peaks.items() if is_rounding(peak).any()}
    # softmax(q (k + b)) does not depend on b: the rule finds these, and nothing else.
    assert left_out == {"block_0/k/bias", "block_1/k/bias"}


def test_keras_layers_train_as_on_the_host(tmp_path):
    check_parity(models.classifier(models.keras_layers), models.sentences(), tmp_path)


def test_half_precision_graphs_train_as_the_same_model_in_float32(tmp_path):
    def logits_in(dtype):
        def logits(features, training):
            kernel = v1.get_variable("kernel", [8, 16], tf.float32)
            hidden = tf.matmul(tf.cast(features, dtype), tf.cast(kernel, dtype))
            hidden = tf.nn.relu(tf.cast(hidden, tf.float32))
            output = v1.get_variable("output", [16, 4], tf.float32)
            return tf.cast(tf.matmul(tf.cast(hidden, dtype), tf.cast(output, dtype)), tf.float32)

        return logits

    wide = models.classifier(logits_in(tf.float32))
    for number, dtype in enumerate([tf.float16, tf.bfloat16]):
        half = models.classifier(logits_in(dtype))
        check_parity(half, models.points(), tmp_path / str(number), on_host=wide)
