"""Small models for the end-to-end tests, and batches for them.

They are built from many APIs on purpose.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
Logits = Callable[[Any, bool], Any]


def gradient_descent(loss: Any) -> Any:
    """Plain SGD."""
    return v1.train.GradientDescentOptimizer(0.1).minimize(loss, v1.train.get_global_step())


def adam(loss: Any) -> Any:
    """compat.v1 Adam."""
    return v1.train.AdamOptimizer(1e-3).minimize(loss, v1.train.get_global_step())


def classifier(logits: Logits, minimize: Callable[[Any], Any] = adam) -> Callable[..., Any]:
    """A model_fn with softmax cross-entropy on integer labels.

    Args:
        logits: (features, whether training) -> [B, classes].
        minimize: loss -> training op; it runs with the UPDATE_OPS.
    """

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
        training = mode == tf.estimator.ModeKeys.TRAIN
        scores = logits(features, training)
        predictions = {"probabilities": tf.nn.softmax(scores), "class": tf.argmax(scores, -1)}
        if mode == tf.estimator.ModeKeys.PREDICT:
            return tf.estimator.EstimatorSpec(mode, predictions=predictions)
        loss = tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=scores)
        )
        metrics = {"accuracy": v1.metrics.accuracy(labels, predictions["class"])}
        train_op = None
        if training:
            with tf.control_dependencies(v1.get_collection(v1.GraphKeys.UPDATE_OPS)):
                train_op = minimize(loss)
        return tf.estimator.EstimatorSpec(
            mode, predictions, loss, train_op, eval_metric_ops=metrics
        )

    return model_fn


def points(count: int = 5, size: int = 6, width: int = 8, classes: int = 4) -> list[Any]:
    """Batches of (float32 [size, width], int32 [size])."""
    rng = np.random.default_rng(5)
    return [
        (
            rng.standard_normal((size, width)).astype(np.float32),
            rng.integers(0, classes, size).astype(np.int32),
        )
        for _ in range(count)
    ]


def images(count: int = 3, size: int = 4, pixels: int = 8) -> list[Any]:
    """Batches of (float32 [size, pixels, pixels, 3], int32 [size])."""
    rng = np.random.default_rng(6)
    return [
        (
            rng.standard_normal((size, pixels, pixels, 3)).astype(np.float32),
            rng.integers(0, 4, size).astype(np.int32),
        )
        for _ in range(count)
    ]


def tokens(count: int = 3, size: int = 3, length: int = 8, vocabulary: int = 17) -> list[Any]:
    """Batches of (int32 [size, length], int32 [size, length])."""
    rng = np.random.default_rng(7)
    drawn = rng.integers(0, vocabulary, (count, size, length + 1)).astype(np.int32)
    return [(rows[:, :-1], rows[:, 1:]) for rows in drawn]


def mlp(features: Any, training: bool) -> Any:
    """Two compat.v1 layers."""
    hidden = v1.layers.dense(features, 16, activation=tf.nn.relu, name="hidden")
    return v1.layers.dense(hidden, 4, name="scores")


def batch_norm_mlp(features: Any, training: bool) -> Any:
    """compat.v1 and Keras batch normalization, and dropout that drops nothing.

    A bias in front would have no true gradient, and its noise would reach the moving mean.
    """
    hidden = v1.layers.dense(features, 16, use_bias=False)
    hidden = v1.layers.batch_normalization(hidden, training=training, momentum=0.9)
    hidden = v1.layers.dropout(tf.nn.relu(hidden), 0.0, training=training)
    hidden = tf.keras.layers.Dense(12, use_bias=False)(hidden)
    layer = tf.keras.layers.BatchNormalization(momentum=0.8)
    hidden = tf.nn.relu(layer(hidden, training=training))
    for update in _keras_updates(layer):
        v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, update)
    return v1.layers.dense(hidden, 4)


def _keras_updates(layer: Any) -> list[Any]:
    """Assignments a Keras layer asks for; in graphs of estimators nobody else collects them."""
    return list(layer.updates)


def dropout_mlp(features: Any, training: bool) -> Any:
    """Dropout with seeds of its own, by three APIs."""
    hidden = v1.layers.dense(features, 32, activation=tf.tanh)
    hidden = v1.layers.dropout(hidden, 0.3, training=training, seed=4)
    hidden = v1.layers.dense(hidden, 32, activation=tf.tanh)
    if training:
        hidden = tf.nn.dropout(hidden, 0.2, seed=9)
        hidden += v1.random_normal(v1.shape(hidden), stddev=0.1, seed=2)
    return v1.layers.dense(hidden, 4)


def conv_net(features: Any, training: bool) -> Any:
    """Convolutions of both paddings, maximum and average pooling."""
    hidden = v1.layers.conv2d(features, 6, 3, padding="same", activation=tf.nn.relu)
    hidden = v1.layers.max_pooling2d(hidden, 2, 2)
    hidden = tf.keras.layers.Conv2D(8, 2, strides=1, padding="valid")(hidden)
    hidden = tf.nn.relu(tf.nn.avg_pool2d(hidden, 2, 1, "SAME"))
    return v1.layers.dense(v1.layers.flatten(hidden), 4)


def small_gpt(features: Any, training: bool) -> Any:
    """A block of a pre-norm transformer decoder, embeddings shared with the output."""
    width, heads, vocabulary = 16, 2, 17
    init = tf.random_normal_initializer(0.0, 0.05)
    table = v1.get_variable("tokens", [vocabulary, width], initializer=init)
    places = v1.get_variable("places", [features.shape[1], width], initializer=init)
    hidden = tf.nn.embedding_lookup(table, features) + places
    hidden += _attention(_layer_norm(hidden, "norm_1"), heads)
    inner = v1.layers.dense(_layer_norm(hidden, "norm_2"), 4 * width, activation=_gelu)
    hidden += v1.layers.dense(inner, width)
    hidden = _layer_norm(hidden, "norm")
    return tf.matmul(tf.reshape(hidden, [-1, width]), table, transpose_b=True)


def _gelu(x: Any) -> Any:
    return 0.5 * x * (1.0 + tf.tanh(np.sqrt(2.0 / np.pi) * (x + 0.044715 * tf.pow(x, 3))))


def _layer_norm(x: Any, name: str) -> Any:
    with v1.variable_scope(name):
        gamma = v1.get_variable("gamma", x.shape[-1:], initializer=tf.ones_initializer())
        beta = v1.get_variable("beta", x.shape[-1:], initializer=tf.zeros_initializer())
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        return tf.nn.batch_normalization(x, mean, variance, beta, gamma, 1e-5)


def _attention(x: Any, heads: int) -> Any:
    length, width = x.shape[1:]

    def split(y: Any) -> Any:  # (B, S, W) -> (B, H, S, D)
        y = tf.reshape(y, [-1, length, heads, width // heads])
        return tf.transpose(y, [0, 2, 1, 3])

    query, key, value = (split(v1.layers.dense(x, width, name=n)) for n in ("q", "k", "v"))
    scores = tf.matmul(query, key, transpose_b=True) / np.sqrt(width // heads)
    hidden_places = 1.0 - tf.linalg.band_part(tf.ones([length, length]), -1, 0)
    mixed = tf.matmul(tf.nn.softmax(scores - 1e4 * hidden_places), value)
    joined = tf.reshape(tf.transpose(mixed, [0, 2, 1, 3]), [-1, length, width])
    return v1.layers.dense(joined, width, name="out")


def language_model(minimize: Callable[[Any], Any] = adam) -> Callable[..., Any]:
    """A model_fn of `small_gpt` that predicts the next token."""

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
        return classifier(small_gpt, minimize)(features, tf.reshape(labels, [-1]), mode, params)

    return model_fn


def keras_layers(features: Any, training: bool) -> Any:
    """Keras's embedding, attention and layer normalization on tokens; the mean over places."""
    layers = tf.keras.layers
    hidden = layers.Embedding(17, 16)(features)
    mixed = layers.MultiHeadAttention(num_heads=2, key_dim=8)(hidden, hidden)
    hidden = layers.LayerNormalization(epsilon=1e-5)(hidden + mixed)
    hidden = layers.Dense(16, activation="gelu")(hidden)
    hidden = layers.Dropout(0.0)(hidden, training=training)
    return layers.Dense(4)(layers.GlobalAveragePooling1D()(hidden))


def sentences() -> list[Any]:
    """Batches of (int32 [3, 8] tokens, int32 [3] classes)."""
    return [(rows, wanted[:, 0] % 4) for rows, wanted in tokens()]
