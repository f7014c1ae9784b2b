"""Captured loops against TensorFlow: values, gradients, assignments."""

from __future__ import annotations

import pytest

pytest.importorskip("tensorflow")

import numpy as np
import tensorflow as tf

from tests.capture.steps_of_both import Built, Cases, captured, check_steps

pytestmark = pytest.mark.tf
in_both_versions = Cases()
v1 = tf.compat.v1


@pytest.fixture(params=[True, False], ids=["v2", "v1"])
def control_flow(request):
    """Runs a test with loops of both versions."""
    (v1.enable_control_flow_v2 if request.param else v1.disable_control_flow_v2)()
    yield
    v1.enable_control_flow_v2()


TIME, BATCH, WIDTH = 4, 3, 2
_random = np.random.default_rng(0)
X = _random.standard_normal((BATCH, TIME, WIDTH)).astype(np.float32)
LENGTHS = np.array([2, 3, 1], np.int32)
BATCHES = [(X,), (2 * X,)]
MASKED = [(X, LENGTHS), (-X, LENGTHS[::-1].copy())]


def weight(name, *shape):
    size = int(np.prod(shape))
    return tf.Variable(np.linspace(-0.7, 0.9, size, dtype=np.float32).reshape(shape), name=name)


def with_gradients(y, *xs):
    """y, and the gradients of a function of it."""
    gradients = tf.gradients(tf.reduce_sum(tf.sin(y)), list(xs))
    return Built({"y": y, **{f"d{at}": g for at, g in enumerate(gradients)}})


@in_both_versions(*BATCHES)
def a_loop_with_a_counter(x):
    w = weight("w", WIDTH, WIDTH)
    y = tf.while_loop(
        lambda i, y: i < 3, lambda i, y: (i + 1, tf.tanh(y @ w) + x[:, 0]), [0, x[:, 1]]
    )[1]
    return with_gradients(y, w, x)


@in_both_versions(*BATCHES)
def a_scan(x):
    w = weight("w", WIDTH, WIDTH)
    y = tf.scan(
        lambda h, e: tf.tanh(tf.matmul(e, w) + h),
        tf.transpose(x, [1, 0, 2]),
        initializer=tf.zeros([BATCH, WIDTH]),
    )
    return with_gradients(y, w, x)


@in_both_versions(*BATCHES)
def a_scan_backwards_without_a_start(x):
    y = tf.scan(lambda h, e: h * e + e, tf.transpose(x, [1, 0, 2]), reverse=True)
    return with_gradients(y, x)


@in_both_versions(*BATCHES)
def a_map(x):
    k = weight("k", WIDTH, WIDTH)
    return with_gradients(tf.map_fn(lambda e: tf.reduce_mean(tf.tanh(e @ k), 0), x), k, x)


@in_both_versions(*MASKED)
def rows_of_their_own_lengths(x, lengths):
    w, v = weight("w", WIDTH, 3), weight("v", 3, 3)
    steps = tf.reduce_max(lengths)
    ta = tf.TensorArray(tf.float32, TIME)
    inputs = tf.TensorArray(tf.float32, TIME).unstack(tf.transpose(x, [1, 0, 2]))

    def body(t, h, ta):
        new = tf.tanh(inputs.read(t) @ w + h @ v)
        live = tf.expand_dims(t < lengths, 1)
        return t + 1, tf.where(live, new, h), ta.write(t, tf.where(live, new, 0.0 * new))

    start = [0, tf.zeros([BATCH, 3]), ta]
    t, h, ta = tf.while_loop(lambda t, *_: t < steps, body, start)
    built = with_gradients(tf.concat([h, tf.reshape(ta.stack(), [-1, 3])], 0), w, v, x)
    built.results["t"] = t
    return built


@in_both_versions(*BATCHES)
def a_loop_that_data_ends(x):
    def body(i, y):
        return i + 1, y * 1.5 + 0.1

    return Built(
        dict(zip("iy", tf.while_loop(lambda i, y: tf.reduce_max(y) < 5.0, body, [0, tf.abs(x)])))
    )


@in_both_versions(*BATCHES)
def a_loop_that_data_ends_with_a_most(x):
    y = tf.while_loop(
        lambda y: tf.reduce_max(y) < 5.0,
        lambda y: [y * 1.5 + 0.1],
        [tf.abs(x)],
        maximum_iterations=9,
    )[0]
    return with_gradients(y, x)


@in_both_versions(*BATCHES)
def a_loop_that_assigns(x):
    w = weight("w", WIDTH)

    def body(i, total):
        with tf.control_dependencies([w.assign_add(total[0, 0])]):
            return i + 1, total + w.read_value()

    y = tf.while_loop(lambda i, _: i < 3, body, [0, x])[1]
    return Built({"y": y})


@in_both_versions(*BATCHES)
def loops_within_loops_and_branches(x):
    w = weight("w", WIDTH, WIDTH)

    def inner(y):
        return tf.while_loop(lambda j, _: j < 2, lambda j, y: (j + 1, tf.sin(y @ w)), [0, y])[1]

    def body(i, y):
        return i + 1, tf.cond(i > 1, lambda: inner(y), lambda: y * 0.5)

    return with_gradients(tf.while_loop(lambda i, _: i < 4, body, [0, x[:, 0]])[1], w, x)


@in_both_versions(*BATCHES)
def a_list_that_is_read_where_it_was_written(x):
    ta = tf.TensorArray(tf.float32, 5, clear_after_read=False).write(0, x[:, 0])

    def body(i, ta):
        return i + 1, ta.write(i, tf.sin(ta.read(i - 1)) + x[:, 1])

    _, ta = tf.while_loop(lambda i, _: i < 5, body, [1, ta])
    return with_gradients(ta.stack(), x)


@in_both_versions(*BATCHES)
def lists_that_grow_and_that_a_branch_writes(x):
    w = weight("w", WIDTH, WIDTH)

    @tf.function
    def loop(x):
        h = x[:, 0]
        every, some = (
            tf.TensorArray(tf.float32, 0, dynamic_size=True),
            tf.TensorArray(tf.float32, 4),
        )
        for t in tf.range(4):
            h = tf.tanh(h @ w)
            every = every.write(t, h)
            if t > 1:
                some = some.write(t, 2.0 * h)
        return tf.concat([every.stack(), some.stack()], 0)

    return with_gradients(loop(x), w)


@in_both_versions(*MASKED)
def elements_of_any_axis(x, lengths):
    """Read at the counter of a loop that the longest row ends, and at places that repeat."""
    w = weight("w", WIDTH, WIDTH)

    def body(t, y):
        return t + 1, tf.tanh((y + x[:, t] + x[:, 3 - t // 2]) @ w)

    most = tf.reduce_max(lengths)
    return with_gradients(tf.while_loop(lambda t, _: t < most, body, [0, x[:, 0]])[1], w, x)


@in_both_versions(*BATCHES)
def dropout_in_a_loop(x):
    def body(i, y):
        return i + 1, y + v1.random_uniform([WIDTH], seed=4)

    y = tf.while_loop(lambda i, _: i < 3, body, [0, x[0, 0]], parallel_iterations=1)[1]
    return Built({"y": y})


@pytest.mark.parametrize(("build", "batches"), in_both_versions)
def test_steps_with_loops_are_those_of_tensorflow(control_flow, build, batches):
    check_steps(build, *batches)


@pytest.mark.parametrize(
    ("build", "batch"),
    [
        (a_loop_with_a_counter, BATCHES[0]),
        (a_scan, BATCHES[0]),
        (a_scan_backwards_without_a_start, BATCHES[0]),
        (rows_of_their_own_lengths, MASKED[0]),
        (elements_of_any_axis, MASKED[0]),
    ],
)
def test_a_counted_loop_is_a_scan(control_flow, build, batch):
    step = captured(build, *batch)
    ops = [node.op for node in step.graph.nodes]
    assert "scan" in ops and "while" not in ops
