"""Compares 20 steps on the wafer with 20 steps of TensorFlow on the host: optimizers, clipping."""

from __future__ import annotations

import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

from tests.e2e import models
from tests.e2e.host_and_wafer import check_parity

pytestmark = pytest.mark.tf
v1 = tf.compat.v1


def by(optimizer):
    """loss -> training op of a compat.v1 optimizer that is made in the graph."""

    def minimize(loss):
        return optimizer().minimize(loss, v1.train.get_global_step())

    return minimize


def decayed_rate():
    step = v1.train.get_global_step()
    return v1.train.cosine_decay(0.05, step, 15, alpha=0.1)


V1_OPTIMIZERS = {
    "sgd": lambda: v1.train.GradientDescentOptimizer(0.1),
    "sgd_with_decay": lambda: v1.train.GradientDescentOptimizer(decayed_rate()),
    "momentum": lambda: v1.train.MomentumOptimizer(0.05, 0.9),
    "nesterov": lambda: v1.train.MomentumOptimizer(0.05, 0.9, use_nesterov=True),
    "adam": lambda: v1.train.AdamOptimizer(1e-2),
    "rmsprop": lambda: v1.train.RMSPropOptimizer(1e-3, momentum=0.5),
    "centered_rmsprop": lambda: v1.train.RMSPropOptimizer(1e-3, centered=True),
    "adagrad": lambda: v1.train.AdagradOptimizer(0.05),
    "adadelta": lambda: v1.train.AdadeltaOptimizer(0.5),
    "ftrl": lambda: v1.train.FtrlOptimizer(0.05),
}


@pytest.mark.parametrize("name", V1_OPTIMIZERS)
def test_v1_optimizer_trains_as_on_the_host(tmp_path, name):
    model_fn = models.classifier(models.mlp, by(V1_OPTIMIZERS[name]))
    check_parity(model_fn, models.points(), tmp_path)


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam", "rmsprop", "adagrad"])
def test_v1_optimizer_updates_rows_of_tables_as_on_the_host(tmp_path, name):
    def logits(features, training):
        table = v1.get_variable("table", [17, 8])
        return models.mlp(tf.reduce_mean(tf.nn.embedding_lookup(table, features), 1), training)

    model_fn = models.classifier(logits, by(V1_OPTIMIZERS[name]))
    check_parity(model_fn, models.sentences(), tmp_path)


def minimize_with_keras(optimizer):
    """loss -> training op of a Keras optimizer, as estimators use them."""

    def minimize(loss):
        made = optimizer()
        step = v1.train.get_global_step()
        variables = v1.trainable_variables()
        if isinstance(made, tf.keras.optimizers.legacy.Optimizer):
            made.iterations = step
            return tf.group(*made.get_updates(loss, variables))
        made.build(variables)
        gradients = tf.gradients(loss, variables)
        done = made.apply_gradients(zip(gradients, variables))
        return tf.group(done, v1.assign_add(step, 1))

    return minimize


LEGACY = tf.keras.optimizers.legacy
KERAS_OPTIMIZERS = {
    "legacy_sgd": lambda: LEGACY.SGD(0.05, momentum=0.9, nesterov=True),
    "legacy_adam": lambda: LEGACY.Adam(1e-2),
    "legacy_rmsprop": lambda: LEGACY.RMSprop(1e-3, momentum=0.5),
    "legacy_adagrad": lambda: LEGACY.Adagrad(0.05),
    "sgd": lambda: tf.keras.optimizers.SGD(0.05, momentum=0.9, jit_compile=False),
    "adamw": lambda: tf.keras.optimizers.AdamW(1e-2, clipnorm=0.5, jit_compile=False),
}


@pytest.mark.parametrize("name", KERAS_OPTIMIZERS)
def test_keras_optimizer_trains_as_on_the_host(tmp_path, name):
    minimize = minimize_with_keras(KERAS_OPTIMIZERS[name])
    check_parity(models.classifier(models.mlp, minimize), models.points(), tmp_path)


def test_hand_written_adamw_trains_as_on_the_host(tmp_path):
    def minimize(loss):
        step = v1.train.get_global_step()
        variables = v1.trainable_variables()
        updates = []
        for variable, gradient in zip(variables, tf.gradients(loss, variables)):
            slots = zeros_like(variable, "m"), zeros_like(variable, "v")
            m = 0.9 * slots[0] + 0.1 * gradient
            v = 0.999 * slots[1] + 0.001 * tf.square(gradient)
            change = m / (tf.sqrt(v) + 1e-6)
            if "bias" not in variable.op.name:
                change += 0.01 * variable
            rate = 1e-3 * tf.cast(step + 1, tf.float32)
            updates += [slots[0].assign(m), slots[1].assign(v), variable.assign_sub(rate * change)]
        with tf.control_dependencies(updates):
            return v1.assign_add(step, 1).op

    check_parity(models.classifier(models.mlp, minimize), models.points(), tmp_path)


def zeros_like(variable, name):
    return v1.get_variable(
        f"{variable.op.name}/{name}",
        variable.shape,
        initializer=tf.zeros_initializer(),
        trainable=False,
    )


def test_hand_written_lamb_trains_as_on_the_host(tmp_path):
    def minimize(loss):
        step = v1.train.get_global_step()
        variables = v1.trainable_variables()
        updates = []
        for variable, gradient in zip(variables, tf.gradients(loss, variables)):
            slots = zeros_like(variable, "m"), zeros_like(variable, "v")
            m = 0.9 * slots[0] + 0.1 * gradient
            v = 0.99 * slots[1] + 0.01 * tf.square(gradient)
            change = m / (tf.sqrt(v) + 1e-6) + 0.01 * variable
            norm, size = tf.norm(variable), tf.norm(change)
            trust = tf.where((norm > 0) & (size > 0), norm / size, 1.0)
            new = variable - 0.01 * trust * change
            updates += [variable.assign(new), slots[0].assign(m), slots[1].assign(v)]
        return tf.group(*updates, v1.assign_add(step, 1))

    check_parity(models.classifier(models.mlp, minimize), models.points(), tmp_path)


def test_accumulated_gradients_and_averages_train_as_on_the_host(tmp_path):
    """Weights move every fourth step; averages of them follow at every step."""

    def minimize(loss):
        step = v1.train.get_global_step()
        optimizer = v1.train.AdamOptimizer(1e-2)
        gradients, variables = zip(*optimizer.compute_gradients(loss))
        sums = [zeros_like(variable, "sum") for variable in variables]

        def apply():
            pairs = [(total.read_value() / 4, v) for total, v in zip(sums, variables)]
            with tf.control_dependencies([optimizer.apply_gradients(pairs)]):
                return tf.group(*[total.assign(tf.zeros_like(total)) for total in sums])

        with tf.control_dependencies([s.assign_add(g) for s, g in zip(sums, gradients)]):
            applied = tf.cond(tf.equal((step + 1) % 4, 0), apply, tf.no_op)
        with tf.control_dependencies([applied]):
            averaged = v1.train.ExponentialMovingAverage(0.9, step).apply(variables)
        with tf.control_dependencies([averaged]):
            return v1.assign_add(step, 1).op

    check_parity(models.classifier(models.mlp, minimize), models.points(), tmp_path)


def by_value(gradients):
    return [tf.clip_by_value(gradient, -0.01, 0.01) for gradient in gradients]


def by_norm(gradients):
    return [tf.clip_by_norm(gradient, 0.05) for gradient in gradients]


def by_global_norm(gradients):
    return tf.clip_by_global_norm(gradients, 0.1)[0]


@pytest.mark.parametrize("clip", [by_value, by_norm, by_global_norm])
def test_clipped_gradients_train_as_on_the_host(tmp_path, clip):
    def minimize(loss):
        optimizer = v1.train.MomentumOptimizer(0.5, 0.9)
        gradients, variables = zip(*optimizer.compute_gradients(loss))
        pairs = zip(clip(gradients), variables)
        return optimizer.apply_gradients(pairs, v1.train.get_global_step())

    check_parity(models.classifier(models.mlp, minimize), models.points(), tmp_path)


@pytest.mark.parametrize("v2", [True, False])
def test_loss_scaling_skips_the_steps_the_host_skips(tmp_path, v2):
    """The scale starts where float32 overflows, so that the first steps are skipped."""

    def minimize(loss):
        step = v1.train.get_global_step()
        scale = v1.get_variable("scale", initializer=3e38, trainable=False)
        optimizer = v1.train.AdamOptimizer(1e-2)
        scaled = optimizer.compute_gradients(loss * scale)
        pairs = [(gradient / scale, variable) for gradient, variable in scaled]
        finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(g)) for g, _ in pairs])

        def apply():
            with tf.control_dependencies([optimizer.apply_gradients(pairs, step)]):
                return v1.assign(scale, tf.minimum(scale * 2.0, 1e30)).op

        def skip():
            return v1.assign(scale, scale * 1e-4).op

        return v1.cond(finite, apply, skip)

    def model_fn(features, labels, mode, params):
        (tf.compat.v1.enable_control_flow_v2 if v2 else tf.compat.v1.disable_control_flow_v2)()
        try:
            return models.classifier(models.mlp, minimize)(features, labels, mode, params)
        finally:
            tf.compat.v1.enable_control_flow_v2()

    host, _ = check_parity(model_fn, models.points(), tmp_path)
    assert host.variables["global_step"] == 20
