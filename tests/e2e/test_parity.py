"""Compares 20 steps on the wafer with 20 steps of TensorFlow on the host: whole models."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.tf
pytest.importorskip("tensorflow")

import tensorflow as tf

from tests.e2e import models
from tests.e2e.host_and_wafer import (
    Run,
    assert_same_run,
    check_parity,
    estimator,
    input_from,
    is_rounding,
)
from tests.reading import assert_same, variables_of

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
        return models.classifier(models.mlp)(features, labels, mode, params)

    check_parity(model_fn, models.points(), tmp_path)


def test_small_gpt_trains_as_on_the_host(tmp_path):
    host, _ = check_parity(models.language_model(), models.tokens(), tmp_path)
    left_out = {name for name, peak in host.peaks.items() if is_rounding(peak).any()}
    # softmax(q (k + b)) does not depend on b: the rule finds it, and nothing else.
    assert left_out == {"k/bias"}


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


def by(optimizer):
    """loss -> training op of a compat.v1 optimizer that is made in the graph."""

    def minimize(loss):
        return optimizer().minimize(loss, v1.train.get_global_step())

    return minimize


def decayed_rate():
    step = v1.train.get_global_step()
    return v1.train.cosine_decay(0.05, step, 15, alpha=0.1)


V1_OPTIMIZERS = {
    "sgd_with_decay": lambda: v1.train.GradientDescentOptimizer(decayed_rate()),
    "nesterov": lambda: v1.train.MomentumOptimizer(0.05, 0.9, use_nesterov=True),
    "centered_rmsprop": lambda: v1.train.RMSPropOptimizer(1e-3, centered=True),
    "adadelta": lambda: v1.train.AdadeltaOptimizer(0.5),
    "ftrl": lambda: v1.train.FtrlOptimizer(0.05),
}


@pytest.mark.parametrize("name", V1_OPTIMIZERS)
def test_v1_optimizer_trains_as_on_the_host(tmp_path, name):
    model_fn = models.classifier(models.mlp, by(V1_OPTIMIZERS[name]))
    check_parity(model_fn, models.points(), tmp_path)


OF_TABLES = {
    "sgd": lambda: v1.train.GradientDescentOptimizer(0.1),
    "momentum": lambda: v1.train.MomentumOptimizer(0.05, 0.9),
    "adam": lambda: v1.train.AdamOptimizer(1e-2),
    "rmsprop": lambda: v1.train.RMSPropOptimizer(1e-3, momentum=0.5),
    "adagrad": lambda: v1.train.AdagradOptimizer(0.05),
}


@pytest.mark.parametrize("name", OF_TABLES)
def test_v1_optimizer_updates_layers_and_rows_of_tables_as_on_the_host(tmp_path, name):
    def logits(features, training):
        table = v1.get_variable("table", [17, 8])
        return models.mlp(tf.reduce_mean(tf.nn.embedding_lookup(table, features), 1), training)

    model_fn = models.classifier(logits, by(OF_TABLES[name]))
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


def train_in_parts(model_fn, arrays, model_dir, parts, measure=False):
    """Trains parts of (last step, whether on the wafer), each by a new estimator."""
    run = Run()
    start = 0
    for last, use_cs in parts:
        made = estimator(model_fn, model_dir, run, measure)
        made.train(input_from(arrays, start), max_steps=last, use_cs=use_cs)
        start = last
    run.variables = variables_of(model_dir)
    return run


def test_alternating_every_few_steps_equals_30_steps_on_either_side(tmp_path):
    model_fn, arrays = models.classifier(models.batch_norm_mlp), models.points()

    def parts(name, *turns):
        return train_in_parts(model_fn, arrays, tmp_path / name, turns, measure=name == "host")

    host, wafer = parts("host", (30, False)), parts("wafer", (30, True))
    wafer.peaks = host.peaks
    mixed = parts("mixed", (7, False), (14, True), (21, False), (30, True))
    for pure in (host, wafer):
        assert_same_run(pure, mixed)


def test_stopping_and_resuming_on_the_wafer_changes_no_bit(tmp_path):
    model_fn, arrays = models.classifier(models.dropout_mlp), models.points()
    pure = train_in_parts(model_fn, arrays, tmp_path / "pure", [(12, True)])
    parts = train_in_parts(model_fn, arrays, tmp_path / "parts", [(5, True), (12, True)])
    assert parts.losses == pure.losses
    assert_same(parts.variables, pure.variables)
