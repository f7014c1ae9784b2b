"""Tests of modelzoo/common/metrics/streaming.py."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow.compat.v1")

from modelzoo.common.metrics.streaming import (
    streaming_accuracy,
    streaming_confusion,
    streaming_mean,
    streaming_sum,
)
from tests.modelzoo.common.metrics.batches import EXAMPLES, evaluate


def mean(values, weights):
    return {"mean": streaming_mean(values, weights, "mean")}


def test_streaming_mean_weights_all_values_of_all_batches():
    generator = np.random.default_rng(0)
    values, weights = generator.normal(size=(2, EXAMPLES, 3)).astype(np.float32) + 2.0
    weights = np.abs(weights)
    assert evaluate(mean, values, weights)["mean"] == pytest.approx(
        np.average(values.astype(np.float64), weights=weights.astype(np.float64)), rel=1e-6
    )


def test_streaming_mean_without_weights_counts_every_value_once():
    values = np.arange(EXAMPLES)
    found = evaluate(lambda column: mean(column, None), values)["mean"]
    assert found == pytest.approx(values.mean())


def test_streaming_mean_counts_no_batch_at_the_end_of_the_input():
    """Batches of static shape, whose number of values needs no input."""
    with tf.Graph().as_default(), tf.Session() as session:
        data = tf.data.Dataset.from_tensor_slices(np.arange(6)).batch(2, drop_remainder=True)
        batch = tf.data.make_one_shot_iterator(data).get_next()
        value, update = streaming_mean(batch, None, "mean")
        session.run(tf.local_variables_initializer())
        with pytest.raises(tf.errors.OutOfRangeError):
            while True:
                session.run(update)
        assert session.run(value) == 2.5


def test_streaming_mean_of_nothing_is_zero():
    zeros = np.zeros(EXAMPLES, np.float32)
    assert evaluate(mean, zeros + 3.0, zeros)["mean"] == 0.0


def test_streaming_mean_of_float16_counts_beyond_its_largest_number():
    """65,504 is float16's largest; half of the 170,000 tokens here have the value 2."""
    values = np.tile(np.array([1.0, 2.0], np.float16), [EXAMPLES, 5000])
    assert evaluate(mean, values, np.ones_like(values))["mean"] == 1.5


def test_streaming_sum_counts_by_ones_where_float32_no_longer_does():
    with tf.Graph().as_default(), tf.Session() as session:
        ones = tf.placeholder(tf.float32, [])
        value, update = streaming_sum(ones, "count")
        session.run(tf.local_variables_initializer())
        session.run(update, {ones: 2.0**24})
        session.run(update, {ones: 1.0})
        assert session.run(value) == 2**24 + 1


def test_streaming_sum_lies_where_tf_estimator_looks_for_metrics():
    with tf.Graph().as_default():
        streaming_sum(tf.zeros([2]), "count")
        kinds = (tf.GraphKeys.LOCAL_VARIABLES, tf.GraphKeys.METRIC_VARIABLES)
        assert [len(tf.get_collection(kind)) for kind in kinds] == [1, 1]
        assert not tf.global_variables() and not tf.trainable_variables()


def test_streaming_accuracy_reads_a_column_of_labels_as_a_row():
    labels, predictions = np.arange(EXAMPLES)[:, None] % 3, np.arange(EXAMPLES) % 2
    found = evaluate(
        lambda *columns: {"accuracy": streaming_accuracy(*columns, None, "accuracy")},
        labels,
        predictions,
    )
    assert found["accuracy"] == pytest.approx(np.mean(labels[:, 0] == predictions))


def test_streaming_confusion_puts_labels_in_rows():
    generator = np.random.default_rng(1)
    labels, predictions = generator.integers(0, 3, (2, EXAMPLES, 4))
    weights = generator.integers(0, 2, (EXAMPLES, 4)).astype(np.float32)
    with tf.Graph().as_default(), tf.Session() as session:
        _, update = streaming_confusion(labels, predictions, weights, 3, "confusion")
        session.run(tf.local_variables_initializer())
        found = session.run(update)
    for true in range(3):
        for predicted in range(3):
            hits = (labels == true) & (predictions == predicted)
            assert found[true, predicted] == (hits * weights).sum()
