"""Checks the casts and summaries that layers call on their tensors."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

from cerebras_tf.estimator.layer_tensors import (
    boundary_cast,
    cs1_disable_summaries,
    cs1_enable_summaries,
    summarize_tensor,
    summary_layer,
)

pytestmark = pytest.mark.tf


def evaluate(tensors):
    with tf.compat.v1.Session() as session:
        return session.run(tensors)


def summaries():
    return tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.SUMMARIES)


def read_histograms(serialized):
    """Returns tag -> (min, max, count) of serialized summaries."""
    histograms = {}
    for text in serialized:
        for value in tf.compat.v1.Summary.FromString(text).value:
            histograms[value.tag] = (value.histo.min, value.histo.max, value.histo.num)
    return histograms


def test_boundary_cast_rounds_values_and_gradients_to_float16(graph):
    values = np.float32([1 / 3, 2049.0, 1e-9])
    x = tf.constant(values)
    y = boundary_cast(x)
    assert y.dtype == tf.float32
    gradient = tf.gradients(y * (1 / 3), x)[0]
    y_value, gradient_value = evaluate([y, gradient])
    np.testing.assert_array_equal(y_value, values.astype(np.float16).astype(np.float32))
    np.testing.assert_array_equal(gradient_value, np.float32(np.float16([1 / 3] * 3)))


def test_boundary_cast_without_back_cast_stays_in_float16(graph):
    y = boundary_cast(tf.constant([1 / 3]), name="border", back_cast=False)
    assert y.dtype == tf.float16
    assert y.op.name.startswith("border")


@pytest.mark.parametrize("dtype", [tf.float16, tf.int32])
def test_boundary_cast_returns_other_types_as_they_are(graph, dtype):
    x = tf.constant([1], dtype)
    assert boundary_cast(x) is x


def test_summary_functions_do_nothing_unless_enabled(graph):
    x = tf.constant([1.0])
    assert summary_layer(x) is x
    assert summarize_tensor(x) is x
    with cs1_enable_summaries(), cs1_disable_summaries():
        assert summary_layer(x) is x
    assert summaries() == []


def test_summary_layer_records_the_activation_and_its_gradient(graph):
    with cs1_enable_summaries():
        x = tf.identity(tf.constant([1.0, -2.0]), name="layer/output")
        y = summary_layer(x)
    gradient = tf.gradients(3.0 * y, x)[0]
    y_value, gradient_value, serialized = evaluate([y, gradient, summaries()])
    np.testing.assert_array_equal(y_value, [1.0, -2.0])
    np.testing.assert_array_equal(gradient_value, [3.0, 3.0])
    histograms = read_histograms(serialized)
    assert histograms["layer/output/activation"] == (-2.0, 1.0, 2.0)
    assert histograms["layer/output/gradient"] == (3.0, 3.0, 2.0)


def test_summarize_tensor_names_a_gradient_after_its_operation(graph):
    with cs1_enable_summaries():
        x = tf.constant([4.0], name="x")
        assert summarize_tensor(x, True, "dense/kernel") is x
    assert list(read_histograms(evaluate(summaries()))) == ["dense/kernel/gradient"]
