"""Recorded gradients, captured and differentiated, against TensorFlow's own backward graph."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

from cerebras_tf.errors import UnsupportedOpError
from tests.capture.steps_of_both import Built, Cases, captured, check_steps
from tests.messages import raises

pytestmark = pytest.mark.tf
case = Cases()
v1 = tf.compat.v1
START = np.random.default_rng(1).standard_normal((5, 3)).astype(np.float32)
X = [(np.random.default_rng(2 + n).standard_normal((4, 3)).astype(np.float32),) for n in range(3)]
IDS = [(np.array(ids, np.int32),) for ids in ([1, 3, 1], [0, 4, 4], [2, 2, 2])]


def optimizers():
    return {
        "sgd": v1.train.GradientDescentOptimizer(0.1),
        "momentum": v1.train.MomentumOptimizer(0.1, 0.9),
        "adam": v1.train.AdamOptimizer(0.01),
        "adagrad": v1.train.AdagradOptimizer(0.1),
    }


def dense(gradients):
    return {str(i): tf.convert_to_tensor(g) for i, g in enumerate(gradients) if g is not None}


@case(*X)
def gradients_by_weights_features_and_activations(x):
    w = tf.Variable(START)
    hidden = tf.tanh(tf.matmul(x, w, transpose_b=True))
    loss = tf.reduce_sum(tf.square(hidden))
    return Built(dense(tf.gradients(loss, [w, x, hidden])))


@case(*X)
def several_outputs_with_cotangents_of_their_own(x):
    w = tf.Variable(START[0])
    ys = [tf.exp(x * w), tf.sin(x + w)]
    return Built(dense(tf.gradients(ys, [w, x], grad_ys=[x, None])))


@case(*X)
def stopped_tensors_are_constants(x):
    w = tf.Variable(START[0])
    middle = tf.exp(w * x)
    loss = tf.reduce_sum(middle * w + tf.stop_gradient(w * w) * x)
    return Built(dense(tf.gradients(loss, [w], stop_gradients=[middle])))


@case(*X)
def a_gradient_of_a_gradient(x):
    w = tf.Variable(START[0])
    (first,) = tf.gradients(tf.reduce_sum(tf.exp(w * x)), [x])
    return Built(dense(tf.gradients(tf.reduce_sum(tf.square(first)), [w, x])))


@case(*X)
def a_tape_of_a_tape(x):
    w = tf.Variable(START[0])
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            loss = tf.reduce_sum(tf.exp(w * x))
        first = inner.gradient(loss, w)
        second = tf.reduce_sum(first**2)
    return Built({"first": first, "second": outer.gradient(second, w)})


@case(*X)
def tensors_that_a_tape_did_not_record_are_constants(x):
    w = tf.Variable(START[0])
    before = tf.exp(w * x)
    with tf.GradientTape() as tape:
        first = before * w
        with tape.stop_recording():
            hidden = tf.sin(w)
        loss = tf.reduce_sum(first * hidden + tf.square(w))
    return Built({"gradient": tape.gradient(loss, w)})


@case(*X)
def a_tape_may_be_reset(x):
    w = tf.Variable(START[0])
    with tf.GradientTape() as tape:
        before = tf.exp(w * x)
        tape.reset()
        loss = tf.reduce_sum(before * w)
    return Built({"gradient": tape.gradient(loss, w)})


@case(*X)
def unconnected_gradients_may_be_zeros(x):
    w, unused = tf.Variable(START[0]), tf.Variable(START)
    loss = tf.reduce_sum(w * x)
    return Built(dense(tf.gradients(loss, [w, unused], unconnected_gradients="zero")))


@case(*X)
def gradients_use_the_values_before_the_update_of_the_same_step(x):
    w = tf.Variable(START[0])
    loss = tf.reduce_sum(tf.exp(w * x))
    (gradient,) = tf.gradients(loss, [w])
    update = w.assign_sub(0.01 * gradient)
    return Built({"loss": loss}, [update.op])


@pytest.mark.parametrize("name", optimizers())
def test_a_table_looked_up_twice_has_a_sparse_gradient(name):
    def build(ids):
        table = tf.Variable(START, name="table")
        first, second = tf.gather(table, ids), tf.gather(table, ids[:2, tf.newaxis] // 2)
        loss = tf.reduce_sum(tf.square(first)) + tf.reduce_sum(tf.exp(second))
        return Built({"loss": loss}, [optimizers()[name].minimize(loss, var_list=[table])])

    check_steps(build, *IDS)


@pytest.mark.parametrize("name", optimizers())
def test_a_table_also_used_as_a_matrix_has_a_dense_gradient(name):
    def build(ids):
        table = tf.Variable(START, name="table")
        logits = tf.matmul(tf.gather(table, ids), table, transpose_b=True)
        loss = tf.reduce_mean(tf.square(logits))
        return Built({"loss": loss}, [optimizers()[name].minimize(loss, var_list=[table])])

    check_steps(build, *IDS)


@pytest.mark.parametrize("name", optimizers())
def test_a_partitioned_table_is_trained(name):
    def build(ids):
        table = v1.get_variable(
            "table",
            [5, 3],
            initializer=v1.random_uniform_initializer(seed=1),
            partitioner=v1.fixed_size_partitioner(2),
            use_resource=True,
        )
        loss = tf.reduce_sum(tf.square(v1.nn.embedding_lookup(table, ids)))
        return Built({"loss": loss}, [optimizers()[name].minimize(loss)])

    check_steps(build, *IDS)


@case(*IDS)
def rows_that_the_loss_does_not_read_are_not_updated(ids):
    """Momentum updates only the rows of the sparse gradient, even if those are zero."""
    table = tf.Variable(START, name="table")
    shown = tf.gather(table, (ids + 1) % 5)
    loss = tf.reduce_sum(tf.square(tf.gather(table, ids)))
    with tf.control_dependencies([shown]):  # else the session may read what it has updated
        trained = optimizers()["momentum"].minimize(loss, var_list=[table])
    return Built({"shown": shown}, [trained])


def test_rows_gathered_inside_a_function_are_trained():
    @tf.function
    def lookup(table, ids):
        return tf.gather(table, ids)

    def build(ids):
        table = tf.Variable(START, name="table")
        loss = tf.reduce_sum(tf.square(lookup(table, ids)) + tf.exp(lookup(table, ids // 2)))
        optimizer = optimizers()["momentum"]
        return Built({"loss": loss}, [optimizer.minimize(loss, var_list=[table])])

    check_steps(build, *IDS)


@pytest.mark.parametrize("depth", [1, 2])
def test_elements_and_rows_at_coordinates_are_trained(depth):
    """TensorFlow's gradient is sparse for whole rows and dense for elements."""

    def build(ids):
        table = tf.Variable(START, name="table")
        coordinates = tf.stack([ids, ids // 2][:depth], -1)
        loss = tf.reduce_sum(tf.square(tf.gather_nd(table, coordinates)))
        optimizer = optimizers()["momentum"]
        return Built({"loss": loss}, [optimizer.minimize(loss, var_list=[table])])

    check_steps(build, *IDS)


@pytest.mark.parametrize("also_outside", [True, False])
@pytest.mark.parametrize("v2", [True, False])
def test_rows_gathered_in_a_branch_are_refused(v2, also_outside):
    def build(ids):
        table = tf.Variable(START, name="table")
        rows = tf.gather(table, ids)
        branch = tf.cond(ids[0] > 0, lambda: tf.gather(table, ids), lambda: tf.ones([3, 3]))
        loss = tf.reduce_sum(branch * rows if also_outside else branch)
        return Built({}, [optimizers()["sgd"].minimize(loss, var_list=[table])])

    (v1.enable_control_flow_v2 if v2 else v1.disable_control_flow_v2)()
    try:
        with raises(UnsupportedOpError, "gradient of 'table'", "tf.cond"):
            captured(build, *IDS[0])
    finally:
        v1.enable_control_flow_v2()


@case(*IDS)
def clipping_by_global_norm_counts_repeated_rows_as_tensorflow_does(ids):
    table = tf.Variable(START, name="table")
    w = tf.Variable(START[0], name="w")
    loss = tf.reduce_sum(tf.square(tf.gather(table, ids) * w))
    gradients = tf.gradients(loss, [table, w])
    clipped, norm = tf.clip_by_global_norm(gradients, 0.5)
    optimizer = optimizers()["sgd"]
    return Built({"norm": norm}, [optimizer.apply_gradients(zip(clipped, [table, w]))])


@case(*X)
def gradients_of_a_read_do_not_reach_what_was_assigned_before(x):
    w, mean = tf.Variable(START[0]), tf.Variable(START[1], trainable=False)
    moved = mean.assign(0.9 * mean + 0.1 * tf.reduce_mean(w * x, axis=0))
    with tf.control_dependencies([moved]):
        loss = tf.reduce_sum(tf.square(x * w - mean.read_value()))
    return Built(dense(tf.gradients(loss, [w, x])), [moved.op])


@case(*X)
def reads_before_and_after_an_assignment_both_have_gradients(x):
    w = tf.Variable(START[0])
    before = tf.reduce_sum(w * x)  # its gradient reads no w: TensorFlow may read it late
    with tf.control_dependencies([before]):
        clipped = w.assign(tf.clip_by_value(w, -0.5, 0.5) + tf.reduce_mean(x))
    with tf.control_dependencies([clipped]):
        later = tf.reduce_sum(tf.sin(w.read_value() * x))
    return Built(dense(tf.gradients(before + later, [w])), [clipped.op])


@case(*IDS)
def gradients_of_gathered_rows_do_not_reach_what_was_assigned_before(ids):
    scale, table = tf.Variable(2.0), tf.Variable(START)
    moved = table.assign(table * scale)
    with tf.control_dependencies([moved]):
        rows = tf.gather(table, ids)
    loss = tf.reduce_sum(tf.square(rows)) + tf.square(scale)
    gradients = tf.gradients(loss, [table, scale])
    return Built(dense(gradients), [moved.op])


@case(*X)
def gradients_of_a_conditional_do_not_reach_what_was_assigned_before(x):
    w, mean = tf.Variable(START[0]), tf.Variable(START[1], trainable=False)
    moved = mean.assign(0.9 * mean + tf.reduce_mean(w * x, axis=0))
    with tf.control_dependencies([moved]):
        shift = tf.cond(x[0, 0] > 0, lambda: mean.read_value(), lambda: 2.0 * mean)
    loss = tf.reduce_sum(tf.square(x * w - shift))
    return Built(dense(tf.gradients(loss, [w])), [moved.op])


@case(*X)
def a_read_after_an_assignment_in_the_same_branch_has_a_gradient(x):
    w, scale = tf.Variable(START[0]), tf.Variable(2.0)

    def halved():
        with tf.control_dependencies([w.assign(0.5 * scale * w)]):
            return tf.reduce_sum(w.read_value() * x)

    loss = tf.cond(x[0, 0] > 0, halved, lambda: tf.reduce_sum(w * scale))
    return Built(dense(tf.gradients(loss + tf.square(scale), [w, scale])), [loss])


@case(*X)
def a_read_after_an_assignment_in_a_branch_replaces_infinity(x):
    best, w = tf.Variable(np.inf, dtype=tf.float32), tf.Variable(START[0])
    loss = tf.reduce_sum(tf.square(w * x))

    def improved():
        with tf.control_dependencies([best.assign(loss)]):
            return best.read_value()

    least = tf.cond(loss < best, improved, best.read_value)
    return Built({"least": least, **dense(tf.gradients(loss, [w]))}, [least])


@pytest.mark.parametrize(("build", "batches"), case)
def test_steps_are_those_of_tensorflow(build, batches):
    check_steps(build, *batches)
