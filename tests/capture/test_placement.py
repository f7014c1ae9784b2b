"""What runs on the wafer, what in the session, and which values pass between them."""

from __future__ import annotations

import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

from cerebras_tf.capture.capture import Capture
from cerebras_tf.capture.placement import Placement
from cerebras_tf.capture.recording import GradientRecorder
from cerebras_tf.capture.variables import managed_variables, variable_spec
from cerebras_tf.errors import UnsupportedOpError
from tests.messages import raises

pytestmark = pytest.mark.tf
v1 = tf.compat.v1


class Model:
    """A graph with one feature and one weight; `make(x, weight)` returns the loss.

    With `rate`, the learning rate decays with the global step and has a summary.
    """

    def __init__(self, make, v2=True, rate=False):
        with tf.Graph().as_default() as graph, v1.variable_scope("", use_resource=True):
            self.step = v1.train.get_or_create_global_step()
            self.x = v1.placeholder(tf.float32, [4], "x")
            start = len(graph.get_operations())
            self.weight = v1.get_variable("weight", [4])
            (v1.enable_control_flow_v2 if v2 else v1.disable_control_flow_v2)()
            try:
                with GradientRecorder() as recorder:
                    self.loss = make(self.x, self.weight)
                    optimizer = v1.train.GradientDescentOptimizer(self.rate() if rate else 0.1)
                    self.train_op = optimizer.minimize(self.loss, self.step)
            finally:
                v1.enable_control_flow_v2()
        self.graph = graph
        handles = {op: variable_spec(v) for op, v in managed_variables(graph).items()}
        handles[self.step.handle.op] = variable_spec(self.step)
        self.capture = Capture(handles, {}, recorder.calls)
        self.placement = Placement(graph, start, handles, self.step.handle.op, recorder.calls)
        self.placement.update()

    def rate(self):
        decayed = v1.train.cosine_decay(0.1, self.step, 10)
        shown = tf.identity(decayed, name="rate")
        v1.summary.scalar("rate_summary", shown)
        return shown

    def boundary(self):
        return self.placement.boundary(self.capture, [self.train_op, self.loss.op])

    def on_wafer(self, name):
        return self.placement.on_wafer(self.graph.get_operation_by_name(name))


def test_operations_on_weights_are_on_the_wafer_and_features_are_fed():
    def make(x, weight):
        scaled = tf.multiply(x, 2.0, name="scaled")
        return tf.reduce_sum(tf.multiply(scaled, weight, name="product"))

    model = Model(make)
    fed, independent = model.boundary()
    assert fed == [model.x]
    assert independent == []
    assert model.on_wafer("product")
    assert not model.on_wafer("x")
    assert not model.on_wafer("scaled")


def test_operations_without_an_ir_form_before_the_weights_stay_in_the_session():
    def make(x, weight):
        parsed = tf.strings.to_number(tf.strings.as_string(x), name="parsed")
        return tf.reduce_sum(parsed * weight)

    model = Model(make)
    fed, _ = model.boundary()
    assert [tensor.op.name for tensor in fed] == ["parsed"]


def test_operations_on_strings_are_host_readers():
    def make(x, weight):
        loss = tf.reduce_sum(x * weight)
        tf.strings.length(tf.strings.as_string(loss, name="written"), name="length")
        return loss

    model = Model(make)
    assert not model.on_wafer("written")
    assert not model.on_wafer("length")
    readers = model.placement.host_readers()
    assert [(op.name, index) for op, index, _ in readers] == [("written", 0)]
    assert readers[0][2] is model.loss


@pytest.mark.parametrize("v2", [True, False])
def test_conditionals_are_on_the_wafer_with_their_branches(v2):
    def make(x, weight):
        product = x * weight
        pred = tf.reduce_sum(x) > 0
        return tf.reduce_sum(tf.cond(pred, lambda: tf.nn.relu(product), lambda: -product))

    model = Model(make, v2)
    model.boundary()
    assert model.placement.host_readers() == []


def test_every_step_runs_the_training_op_and_no_initializer():
    model = Model(lambda x, weight: tf.reduce_sum(x * weight))
    model.boundary()
    assert model.placement.is_computed(model.train_op)
    assert not model.placement.is_computed(model.weight.initializer)


@pytest.mark.parametrize("inside", [False, True])
def test_gradients_of_outer_tensors_in_a_branch_are_refused(inside):
    def make(x, weight):
        loss = tf.reduce_sum(tf.square(weight * x))

        def update(rate):
            own = tf.reduce_sum(tf.square(weight * x)) if inside else loss
            return v1.train.GradientDescentOptimizer(rate).minimize(own, var_list=[weight])

        both = tf.cond(x[0] > 0, lambda: update(0.1), lambda: update(0.2), name="alternate")
        with tf.control_dependencies([both]):
            return tf.identity(loss)

    facts = ("'alternate'", "built at test_placement.py:", "weight", "apply_gradients")
    with raises(UnsupportedOpError, *facts):
        Model(make).boundary()


def test_gradients_taken_before_a_branch_are_applied_inside_of_it():
    def make(x, weight):
        loss = tf.reduce_sum(tf.square(weight * x))
        optimizer = v1.train.GradientDescentOptimizer(0.1)
        pairs = optimizer.compute_gradients(loss, [weight])
        done = tf.cond(x[0] > 0, lambda: optimizer.apply_gradients(pairs), tf.no_op)
        with tf.control_dependencies([done]):
            return tf.identity(loss)

    fed, _ = Model(make).boundary()
    assert [tensor.op.name for tensor in fed] == ["x"]


def test_missing_operations_inside_branches_are_named_themselves():
    def make(x, weight):
        square = tf.reshape(x * weight, [2, 2])
        pred = tf.reduce_sum(x) > 0
        return tf.cond(pred, lambda: tf.math.special.spence(square)[0, 0], lambda: square[0, 0])

    with raises(UnsupportedOpError, "Spence (1x"):
        Model(make).boundary()


def test_summaries_and_metrics_stay_in_the_session_and_read_wafer_values():
    def make(x, weight):
        loss = tf.reduce_sum(tf.multiply(x, weight, name="product"))
        v1.summary.scalar("shown", loss)
        v1.metrics.mean(loss, name="metric")
        return loss

    model = Model(make)
    model.boundary()
    readers = {(op.type, tensor.name) for op, _, tensor in model.placement.host_readers()}
    assert ("ScalarSummary", model.loss.name) in readers
    assert all(not op.type.startswith("Assign") for op in wafer_operations(model, "metric"))
    assert not model.on_wafer("metric/value")


def wafer_operations(model, scope):
    operations = model.graph.get_operations()
    return [op for op in operations if op.name.startswith(scope) and model.placement.on_wafer(op)]


def test_a_python_function_reads_an_activation_in_the_session():
    def make(x, weight):
        product = tf.multiply(x, weight, name="product")
        seen = tf.numpy_function(lambda a: a, [product], tf.float32, name="seen")
        tf.reduce_sum(seen, name="total")
        return tf.reduce_sum(product)

    model = Model(make)
    model.boundary()
    assert [op.name for op, _, _ in model.placement.host_readers()] == ["seen"]
    assert not model.on_wafer("total")


def test_the_session_runs_python_and_text_between_two_parts_of_a_step():
    def make(x, weight):
        seen = tf.numpy_function(lambda a: a, [x * weight], tf.float32, name="seen")
        half = tf.ensure_shape(seen, [4], name="half") / 2.0
        text = tf.strings.to_number(tf.strings.as_string(half, name="written"), name="parsed")
        scaled = tf.math.special.bessel_j0(tf.stop_gradient(text * weight), name="later")
        return tf.reduce_sum(text * weight + scaled)

    model = Model(make)
    fed, _ = model.boundary()
    assert {tensor.op.name for tensor in fed} == {"x", "parsed", "later/BesselJ0"}
    parts = {op.name: part for op, part in model.placement.between.items()}
    assert {parts[name] for name in ("seen", "half", "written", "parsed")} == {0}
    assert parts["later/BesselJ0"] == 1
    assert model.on_wafer(model.loss.op.name)


def test_operations_added_later_are_placed_at_the_next_update():
    model = Model(lambda x, weight: tf.reduce_sum(x * weight))
    model.boundary()
    with model.graph.as_default():
        tf.exp(model.loss, name="late")
        v1.summary.scalar("late_summary", model.loss)
    assert not model.on_wafer("late")
    model.placement.update()
    assert model.on_wafer("late")
    assert [op.name for op, _, _ in model.placement.host_readers()] == ["late_summary"]


def test_a_loop_on_features_runs_in_the_session():
    def make(x, weight):
        doubled = tf.while_loop(lambda y: y[0] < 9.0, lambda y: y * 2.0, [x])
        return tf.reduce_sum(tf.identity(doubled[0], name="doubled") * weight)

    for v2 in (True, False):
        model = Model(make, v2)
        fed, _ = model.boundary()
        assert len(fed) == 1 and not model.placement.on_wafer(fed[0].op)


def test_checks_of_features_run_independently_of_the_step():
    def make(x, weight):
        product = x * weight
        with tf.control_dependencies([v1.assert_positive(x), v1.print("loss")]):
            return tf.reduce_sum(product)

    model = Model(make)
    _, independent = model.boundary()
    assert {op.type for op in independent} == {"Identity", "PrintV2"}  # the guard's, and the print
    assert model.placement.after_step == []
    assert not any(map(model.placement.is_computed, independent))


def test_checks_of_wafer_values_run_after_the_step():
    def make(x, weight):
        product = x * weight
        guard = v1.assert_positive(product, name="positive")
        written = tf.numpy_function(lambda a: a, [product], tf.float32, name="written")
        with tf.control_dependencies([guard, tf.print("product", product), written]):
            return tf.reduce_sum(product)

    model = Model(make)
    _, independent = model.boundary()
    assert independent == []
    assert {op.type for op in model.placement.after_step} == {"Identity", "PrintV2", "PyFunc"}
    readers = {op.type for op, _, _ in model.placement.host_readers()}
    assert readers == {"If", "StringFormat", "PyFunc"}


def test_side_effects_that_read_no_weights_are_independent_of_the_step():
    def make(x, weight):
        noted = tf.numpy_function(lambda a: a, [x], tf.float32, name="noted")
        with tf.control_dependencies([noted]):
            return tf.reduce_sum(x * weight)

    model = Model(make)
    fed, independent = model.boundary()
    assert [op.name for op in independent] == ["noted"]
    assert fed == [model.x]
    assert not model.placement.is_computed(independent[0])


def test_a_learning_rate_from_the_global_step_is_computed_once_by_the_step():
    model = Model(lambda x, weight: tf.reduce_sum(x * weight), rate=True)
    fed, _ = model.boundary()
    assert fed == [model.x]
    assert model.on_wafer("rate")
    assert ("rate_summary", "rate:0") in {
        (op.name, tensor.name) for op, _, tensor in model.placement.host_readers()
    }
