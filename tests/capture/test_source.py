"""Checks how operations without an IR form are reported."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

from cerebras_tf.capture.source import missing_op_report, user_line

pytestmark = pytest.mark.tf


def operations():
    with tf.Graph().as_default():
        square = tf.ones([2, 2])
        return [tf.linalg.inv(square).op, tf.linalg.det(square).op, tf.linalg.det(2 * square).op]


def test_the_users_line_is_named_not_tensorflows():
    file, line = user_line(operations()[0]).split(":")
    assert file == "test_source.py"
    assert "tf.linalg.inv" in Path(__file__).read_text(encoding="utf-8").splitlines()[int(line) - 1]


def test_operations_of_function_bodies_need_no_line():
    class WithoutTraceback:
        @property
        def traceback(self):
            raise AttributeError("traceback")

    assert user_line(WithoutTraceback()) == ""


def test_a_report_counts_types_most_frequent_first():
    report = missing_op_report(operations())
    assert report.startswith("2 TensorFlow op types have no IR form: MatrixDeterminant (2x, ")
    assert "MatrixInverse (1x, 'MatrixInverse', built at test_source.py:" in report


def test_a_report_of_one_type_is_singular():
    assert missing_op_report(operations()[:1]).startswith("1 TensorFlow op type has no IR form: ")
