"""Which gradient calls are recorded, and that TensorFlow is restored afterwards."""

from __future__ import annotations

import threading

import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf
from tensorflow.python.ops import gradients_util

from cerebras_tf.capture.recording import GradientRecorder

pytestmark = pytest.mark.tf
v1 = tf.compat.v1


@pytest.fixture
def graph():
    with tf.Graph().as_default() as made, v1.variable_scope("", use_resource=True):
        yield made


def test_a_gradient_call_is_recorded_with_what_it_made(graph):
    weight = v1.get_variable("weight", [2])
    x = v1.placeholder(tf.float32, [2])
    with GradientRecorder() as recorder:
        loss = tf.reduce_sum(weight * x)
        by_weight, by_x = tf.gradients(loss, [weight, x], grad_ys=[tf.constant(2.0)])
    (call,) = recorder.calls
    assert call.ys == [loss]
    assert call.xs[0] is weight.handle
    assert call.xs[1] is x
    assert call.results == [by_weight, by_x]
    assert call.dys[0].op.type == "Const"
    assert by_weight.op in call.made
    assert loss.op not in call.made


def test_optimizers_and_tapes_are_recorded_once_each(graph):
    weight = v1.get_variable("weight", [2])
    with GradientRecorder() as recorder:
        v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(weight**2))
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.exp(weight))
        found = tape.gradient(loss, {"w": weight})
    assert len(recorder.calls) == 2
    assert recorder.calls[1].ys == [loss]
    assert recorder.calls[1].results == [found["w"]]


def test_stop_gradients_and_variables_without_a_gradient_are_recorded(graph):
    weight, unused = v1.get_variable("weight", [2]), v1.get_variable("unused", [2])
    with GradientRecorder() as recorder:
        middle = weight * 3.0
        loss = tf.reduce_sum(middle * weight)
        tf.gradients(loss, [weight, unused], stop_gradients=[middle])
    assert recorder.calls[0].stops == [middle]
    assert recorder.calls[0].results[1] is None


def test_sparse_gradients_are_recorded_as_they_are(graph):
    table = v1.get_variable("table", [5, 2])
    with GradientRecorder() as recorder:
        (slices,) = tf.gradients(tf.reduce_sum(tf.gather(table, [1, 3])), table)
    assert isinstance(slices, tf.IndexedSlices)
    assert recorder.calls[0].results == [slices]


def test_tensorflow_is_restored_after_an_error(graph):
    before = gradients_util._GradientsHelper, tf.GradientTape.gradient
    with pytest.raises(ZeroDivisionError), GradientRecorder():
        assert gradients_util._GradientsHelper is not before[0]
        raise ZeroDivisionError
    assert (gradients_util._GradientsHelper, tf.GradientTape.gradient) == before


def test_recorders_of_several_threads_record_what_their_own_thread_differentiates():
    """The first recorder ends while the second is active, and the second after it."""
    before = gradients_util._GradientsHelper, tf.GradientTape.gradient, tf.GradientTape._push_tape
    first_entered, second_entered, first_left = (threading.Event() for _ in range(3))
    found = {}

    def differentiate(name, entered, wait_for, leave):
        with tf.Graph().as_default(), GradientRecorder() as recorder:
            entered.set()
            assert wait_for.wait(60)
            x = v1.placeholder(tf.float32, [2], name)
            tf.gradients(tf.exp(x), x)
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = tf.sin(x)
            tape.gradient(y, x)
            found[name] = [call.xs[0].op.name for call in recorder.calls]
        leave.set()

    first = threading.Thread(
        target=differentiate, args=("first", first_entered, second_entered, first_left)
    )
    second = threading.Thread(
        target=differentiate, args=("second", second_entered, first_left, threading.Event())
    )
    first.start()
    assert first_entered.wait(60)
    second.start()
    first.join()
    second.join()
    assert found == {"first": ["first"] * 2, "second": ["second"] * 2}
    after = gradients_util._GradientsHelper, tf.GradientTape.gradient, tf.GradientTape._push_tape
    assert after == before


def test_eager_tapes_are_not_recorded():
    with GradientRecorder() as recorder, tf.GradientTape() as tape:
        x = tf.constant(2.0)
        tape.watch(x)
        assert tape.gradient(x * x, x).numpy() == 4.0
    assert recorder.calls == []


def test_a_call_inside_a_recorded_call_is_not_recorded(graph):
    @tf.custom_gradient
    def cube(x):
        return x * x * x, lambda upstream: upstream * tf.gradients(x * x * x, x)[0]

    x = v1.placeholder(tf.float32, [2])
    with GradientRecorder() as recorder:
        tf.gradients(cube(x), x)
    (call,) = recorder.calls
    assert call.xs == [x]


def test_a_second_derivative_is_a_call_of_its_own(graph):
    x = v1.placeholder(tf.float32, [2])
    with GradientRecorder() as recorder:
        (first,) = tf.gradients(tf.exp(x), x)
        tf.gradients(first, x)
    assert [call.ys for call in recorder.calls][1] == [first]


def test_a_result_that_is_an_older_tensor_is_none(graph):
    older = tf.constant([1.0, 2.0])

    @tf.custom_gradient
    def doubled(x):
        return 2.0 * x, lambda upstream: older

    x = v1.placeholder(tf.float32, [2])
    with GradientRecorder() as recorder:
        (found,) = tf.gradients(doubled(x), x)
    assert found is older
    assert recorder.calls[0].results == [None]


def test_a_call_that_fails_is_not_recorded_and_the_next_one_is(graph):
    x = v1.placeholder(tf.float32, [2])
    with GradientRecorder() as recorder:
        with pytest.raises(TypeError):
            tf.gradients(tf.exp(x), x, grad_ys=tf.constant([1, 2]))
        tf.gradients(tf.exp(x), x)
    assert len(recorder.calls) == 1


KERAS_OPTIMIZERS = {
    "legacy": lambda: tf.keras.optimizers.legacy.SGD(0.1),
    "keras": lambda: tf.keras.optimizers.SGD(0.1, jit_compile=False),
}


@pytest.mark.parametrize("name", KERAS_OPTIMIZERS)
def test_keras_optimizers_make_one_call_by_all_variables(graph, name):
    first, second = v1.get_variable("first", [2]), v1.get_variable("second", [])
    with GradientRecorder() as recorder:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(first) * second
        KERAS_OPTIMIZERS[name]().minimize(loss, [first, second], tape=tape)
    (call,) = recorder.calls
    assert [x.op for x in call.xs] == [first.handle.op, second.handle.op]
    assert None not in call.results
