"""precision "emulate": rounds to the graph's own type after every operation, as TensorFlow does."""

from __future__ import annotations

import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

from tests.e2e import models
from tests.e2e.host_and_wafer import train

pytestmark = pytest.mark.tf
v1 = tf.compat.v1


def elementwise(x, dtype):
    kernel = v1.get_variable("kernel", [8], tf.float32)
    return squashed(x * tf.cast(kernel, dtype), dtype)[:, :4]


def products(x, dtype):
    kernel = v1.get_variable("kernel", [8, 16], tf.float32)
    output = v1.get_variable("output", [16, 4], tf.float32)
    return tf.matmul(squashed(tf.matmul(x, tf.cast(kernel, dtype)), dtype), tf.cast(output, dtype))


def host_truncates():
    """Whether TensorFlow cuts a product to bfloat16 instead of rounding it: without oneDNN."""
    with tf.Graph().as_default(), v1.Session() as session:
        ones = tf.ones([16, 16], tf.bfloat16)  # 15 + 1.09375, nearest to 16.125, cut to 16
        values = tf.concat([ones[:15], ones[:1] * tf.constant(1.09375, tf.bfloat16)], axis=0)
        return float(session.run(tf.cast(tf.matmul(ones, values), tf.float32))[0, 0]) < 16.0625


def squashed(x, dtype):
    x = tf.nn.relu(x)
    return x / (tf.constant(1, dtype) + tf.abs(x)) - x * tf.constant(0.1, dtype)


@pytest.mark.parametrize(
    ("dtype", "layer"),
    # TensorFlow rounds sums of float16 at every term; here, as on the wafer, they are float32.
    [(tf.float16, elementwise), (tf.bfloat16, elementwise), (tf.bfloat16, products)],
)
def test_losses_are_those_of_tensorflow_s_own_half_precision(dtype, layer, tmp_path):
    if layer is products and host_truncates():
        pytest.skip("on this processor TensorFlow truncates products to bfloat16")

    def logits(features, training):
        return tf.cast(layer(tf.cast(features, dtype), dtype), tf.float32)

    model = models.classifier(logits, models.gradient_descent)
    runs = {
        name: train(model, models.points(), tmp_path / name, name != "host", steps=1, **config)
        for name, config in (("host", {}), ("wide", {}), ("half", {"precision": "emulate"}))
    }
    loss = {name: run.losses[0] for name, run in runs.items()}
    assert loss["half"] == pytest.approx(loss["host"], rel=2e-7)  # the loss itself is float32
    assert loss["wide"] != pytest.approx(loss["host"], rel=2e-6)


def scaled_loss(scale):
    """A loss whose gradients overflow float16 where the scale is too large."""

    def model_fn(features, labels, mode, params):
        w = v1.get_variable("w", [8, 4], tf.float32, v1.initializers.ones())
        y = tf.matmul(tf.cast(features, tf.float16), tf.cast(w, tf.float16))
        loss = tf.reduce_mean(tf.square(tf.cast(y, tf.float32)))
        (gradient,) = tf.gradients(loss * scale, [w])
        finite = tf.reduce_all(tf.math.is_finite(gradient))
        step = tf.where(finite, gradient / scale, tf.zeros_like(gradient))
        update = w.assign_sub(1e-3 * step)
        counted = v1.assign_add(v1.train.get_or_create_global_step(), 1)
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=tf.group(update, counted))

    return model_fn


@pytest.mark.parametrize(
    ("precision", "scale", "learns"),
    [("emulate", 2.0**10, True), ("emulate", 2.0**20, False), ("float32", 2.0**20, True)],
)
def test_a_loss_scale_that_is_too_large_overflows_where_it_is_emulated(
    precision, scale, learns, tmp_path
):
    run = train(scaled_loss(scale), models.points(), tmp_path, True, steps=3, precision=precision)
    assert (run.variables["w"] != 1).any() == learns
