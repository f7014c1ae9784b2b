"""How operations without an IR form are reported."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

from cerebras_tf.capture.lowerable import missing_op_report, user_line
from tests.messages import names

pytestmark = pytest.mark.tf


def operations():
    with tf.Graph().as_default():
        square = tf.ones([2, 2])
        return [tf.linalg.sqrtm(square).op, *(tf.linalg.lu(x)[0].op for x in (square, 2 * square))]


def test_the_users_line_is_named_not_tensorflows():
    file, line = user_line(operations()[0]).split(":")
    assert file == "test_lowerable.py"
    assert (
        "tf.linalg.sqrtm" in Path(__file__).read_text(encoding="utf-8").splitlines()[int(line) - 1]
    )


def test_operations_of_function_bodies_need_no_line():
    class WithoutTraceback:
        @property
        def traceback(self):
            raise AttributeError("traceback")

    assert user_line(WithoutTraceback()) == ""


def test_a_report_counts_types_most_frequent_first():
    report = missing_op_report(operations())
    names(report, "2 TensorFlow op types", "MatrixSquareRoot (1x, 'MatrixSquareRoot', built at tes")
    assert report.index("Lu (2x") < report.index("MatrixSquareRoot")


def line_below():
    return f"test_lowerable.py:{inspect.currentframe().f_back.f_lineno + 1}"


def test_the_users_line_is_named_where_keras_built_the_operation():
    with tf.Graph().as_default():
        x = tf.ones([2, 4])
        line = line_below()
        y = tf.keras.layers.Dense(3)(x)
    assert user_line(y.op) == line


def test_operations_of_traced_functions_name_the_line_inside():
    @tf.function(input_signature=[tf.TensorSpec([2])])
    def body(x):
        return tf.exp(x)  # here

    operations = body.get_concrete_function().graph.get_operations()
    (exp,) = [op for op in operations if op.type == "Exp"]
    line = int(user_line(exp).split(":")[1])
    assert "# here" in Path(__file__).read_text(encoding="utf-8").splitlines()[line - 1]


@pytest.mark.parametrize("v2", [True, False])
def test_a_loop_is_reported_as_one_while_however_it_is_built(v2):
    (tf.compat.v1.enable_control_flow_v2 if v2 else tf.compat.v1.disable_control_flow_v2)()
    try:
        with tf.Graph().as_default() as graph:
            line = line_below()
            tf.while_loop(lambda i, x: i < 3, lambda i, x: [i + 1, x * 2.0], [0, 1.0])
    finally:
        tf.compat.v1.enable_control_flow_v2()
    parts = ("While", "StatelessWhile", "Enter", "Exit", "LoopCond", "NextIteration")
    report = missing_op_report([op for op in graph.get_operations() if op.type in parts])
    assert names(report, "1 TensorFlow op type", "While (1x, 'while", f"built at {line})")
