"""Checks what runs on the wafer, what in the session, and what crosses between them."""

from __future__ import annotations

import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

from cerebras_tf.capture.capture import Capture
from cerebras_tf.capture.placement import Placement
from cerebras_tf.capture.recording import GradientRecorder
from cerebras_tf.capture.variables import managed_variables, variable_spec
from cerebras_tf.errors import UnsupportedOpError

pytestmark = pytest.mark.tf
v1 = tf.compat.v1


class Model:
    """A graph with one feature and one weight; `make(x, weight)` returns the loss."""

    def __init__(self, make, v2=True):
        with tf.Graph().as_default() as graph, v1.variable_scope("", use_resource=True):
            self.step = v1.train.get_or_create_global_step()
            self.x = v1.placeholder(tf.float32, [4], "x")
            start = len(graph.get_operations())
            self.weight = v1.get_variable("weight", [4])
            (v1.enable_control_flow_v2 if v2 else v1.disable_control_flow_v2)()
            try:
                with GradientRecorder() as recorder:
                    self.loss = make(self.x, self.weight)
                    optimizer = v1.train.GradientDescentOptimizer(0.1)
                    self.train_op = optimizer.minimize(self.loss, self.step)
            finally:
                v1.enable_control_flow_v2()
        self.graph = graph
        handles = {op: variable_spec(v) for op, v in managed_variables(graph).items()}
        handles[self.step.handle.op] = variable_spec(self.step)
        self.capture = Capture(handles, {}, recorder.calls)
        self.placement = Placement(graph, start, handles, self.step.handle.op, recorder.calls)
        self.placement.update()

    def boundary(self):
        return self.placement.boundary(self.capture, [self.train_op, self.loss.op])

    def on_wafer(self, name):
        return self.placement.on_wafer(self.graph.get_operation_by_name(name))


def test_what_depends_on_weights_is_on_the_wafer_and_features_are_fed():
    def make(x, weight):
        scaled = tf.multiply(x, 2.0, name="scaled")
        return tf.reduce_sum(tf.multiply(scaled, weight, name="product"))

    model = Model(make)
    fed, beside = model.boundary()
    assert fed == [model.x]
    assert beside == []
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


def test_strings_and_what_follows_them_are_host_readers():
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
def test_conditionals_are_on_the_wafer_whole(v2):
    def make(x, weight):
        product = x * weight
        pred = tf.reduce_sum(x) > 0
        return tf.reduce_sum(tf.cond(pred, lambda: tf.nn.relu(product), lambda: -product))

    model = Model(make, v2)
    model.boundary()
    assert model.placement.host_readers() == []


def test_the_training_op_counts_as_run_by_every_step_and_an_initializer_does_not():
    model = Model(lambda x, weight: tf.reduce_sum(x * weight))
    model.boundary()
    assert model.placement.is_computed(model.train_op)
    assert not model.placement.is_computed(model.weight.initializer)


def test_missing_operations_are_listed_in_the_order_they_were_built():
    def make(x, weight):
        square = tf.reshape(x * weight, [2, 2])
        turned = tf.linalg.inv(square)
        return tf.linalg.det(turned) + tf.linalg.det(square)

    with pytest.raises(UnsupportedOpError) as raised:
        Model(make).boundary()
    message = str(raised.value)
    assert message.startswith("2 TensorFlow op types have no IR form: MatrixDeterminant (2x, ")
    assert "'MatrixDeterminant', built at test_placement.py:" in message
    assert "MatrixInverse (1x, 'MatrixInverse', built at test_placement.py:" in message


def test_missing_operations_inside_branches_are_named_themselves():
    def make(x, weight):
        square = tf.reshape(x * weight, [2, 2])
        pred = tf.reduce_sum(x) > 0
        return tf.cond(pred, lambda: tf.linalg.det(square), lambda: square[0, 0])

    with pytest.raises(UnsupportedOpError, match=r"MatrixDeterminant \(1x"):
        Model(make).boundary()
