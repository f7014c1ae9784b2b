"""Compares 20 steps on the wafer with 20 steps of TensorFlow on the host: kinds of gradients."""

from __future__ import annotations

import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

from tests.e2e import models
from tests.e2e.host_and_wafer import check_parity

pytestmark = pytest.mark.tf
v1 = tf.compat.v1


def check(tmp_path, logits, minimize=models.adam):
    check_parity(models.classifier(logits, minimize), models.points(), tmp_path)


def test_custom_gradient_is_used_as_on_the_host(tmp_path):
    @tf.custom_gradient
    def halved(x):
        return tf.square(x), lambda upstream: upstream * x

    def logits(features, training):
        return models.mlp(halved(v1.layers.dense(features, 8)), training)

    check(tmp_path, logits, models.gradient_descent)


def test_recomputed_layers_train_as_on_the_host(tmp_path):
    def logits(features, training):
        kernel = v1.get_variable("kernel", [8, 8])
        block = tf.recompute_grad(lambda x: tf.tanh(tf.matmul(x, kernel)))
        return models.mlp(block(features), training)

    check(tmp_path, logits)


def test_stop_gradient_stops_as_on_the_host(tmp_path):
    def logits(features, training):
        hidden = v1.layers.dense(features, 8)
        return models.mlp(hidden * tf.stop_gradient(tf.sigmoid(hidden)), training)

    check(tmp_path, logits)


def test_gradients_by_activations_train_as_on_the_host(tmp_path):
    def minimize(loss):
        (hidden,) = v1.get_collection("hidden")
        (slope,) = tf.gradients(loss, hidden)
        return models.adam(loss + 0.1 * tf.reduce_sum(tf.stop_gradient(slope) * hidden))

    def logits(features, training):
        hidden = v1.layers.dense(features, 8, tf.tanh)
        v1.add_to_collection("hidden", hidden)
        return models.mlp(hidden, training)

    check(tmp_path, logits, minimize)


def test_gradient_penalty_trains_as_on_the_host(tmp_path):
    def logits(features, training):
        hidden = v1.layers.dense(features, 8, tf.tanh)
        v1.add_to_collection("hidden", hidden)
        return v1.layers.dense(tf.tanh(hidden), 4)

    def minimize(loss):
        (hidden,) = v1.get_collection("hidden")
        (slope,) = tf.gradients(loss, hidden)
        return models.adam(loss + 10.0 * tf.reduce_sum(tf.square(slope)))

    check(tmp_path, logits, minimize)


def test_a_table_that_is_looked_up_twice_and_multiplied_trains_as_on_the_host(tmp_path):
    def logits(features, training):
        table = v1.get_variable("table", [17, 16])
        found = tf.nn.embedding_lookup(table, features)
        found += tf.nn.embedding_lookup(table, (features + 1) % 17)
        hidden = v1.layers.dense(tf.reduce_mean(found, 1), 16, activation=tf.nn.swish)
        return tf.matmul(hidden, table, transpose_b=True)[:, :4]

    check_parity(models.classifier(logits), models.sentences(), tmp_path)


def test_two_optimizers_on_parts_of_a_model_train_as_on_the_host(tmp_path):
    def minimize(loss):
        first = [v for v in v1.trainable_variables() if v.op.name.startswith("hidden")]
        rest = [v for v in v1.trainable_variables() if v not in first]
        one = v1.train.GradientDescentOptimizer(0.1).minimize(loss, var_list=first)
        with tf.control_dependencies([one]):
            return v1.train.AdamOptimizer(1e-2).minimize(
                loss, v1.train.get_global_step(), var_list=rest
            )

    check(tmp_path, models.mlp, minimize)


def test_gradient_tape_in_model_fn_trains_as_on_the_host(tmp_path):
    def model_fn(features, labels, mode, params):
        with tf.GradientTape() as tape:
            scores = models.mlp(features, True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=scores)
            loss = tf.reduce_mean(losses)
        variables = v1.trainable_variables()
        pairs = zip(tape.gradient(loss, variables), variables)
        optimizer = v1.train.AdamOptimizer(1e-2)
        train_op = optimizer.apply_gradients(pairs, v1.train.get_global_step())
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

    check_parity(model_fn, models.points(), tmp_path)


def test_a_tf_function_in_a_model_trains_as_on_the_host(tmp_path):
    def logits(features, training):
        kernel = v1.get_variable("kernel", [8, 8])

        @tf.function
        def layer(x):
            return tf.nn.elu(tf.matmul(x, kernel))

        return models.mlp(layer(features), training)

    check(tmp_path, logits)


@pytest.mark.parametrize("v2", [True, False])
def test_a_conditional_layer_trains_as_on_the_host(tmp_path, v2):
    def logits(features, training):
        hidden = v1.layers.dense(features, 8, name="below")
        even = tf.equal(v1.train.get_global_step() % 2, 0)
        hidden = tf.cond(even, lambda: tf.nn.relu(hidden), lambda: tf.tanh(hidden) * 2.0)
        return models.mlp(hidden, training)

    def model_fn(features, labels, mode, params):
        (v1.enable_control_flow_v2 if v2 else v1.disable_control_flow_v2)()
        try:
            return models.classifier(logits)(features, labels, mode, params)
        finally:
            v1.enable_control_flow_v2()

    check_parity(model_fn, models.points(), tmp_path)
