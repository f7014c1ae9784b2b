"""Checks which host calls are accepted and how their results become eval_metric_ops."""

from __future__ import annotations

import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

from cerebras_tf.errors import ConfigError
from cerebras_tf.estimator.spec import host_call_to_eval_metric_ops, validate_host_call

pytestmark = pytest.mark.tf


def metric_pairs(labels, predictions):
    return [
        tf.compat.v1.metrics.accuracy(labels, predictions),
        "not a pair",
        tf.compat.v1.metrics.mean(predictions),
    ]


def two(labels, predictions):
    return {}


@pytest.mark.parametrize("host_call", [None, (), []])
def test_no_host_call_validates_to_an_empty_tuple(host_call):
    assert validate_host_call(host_call) == ()
    assert host_call_to_eval_metric_ops(host_call) == {}


@pytest.mark.parametrize("host_call", [(two, [1, 2]), [two, (1, 2)], (two, [1, 2], ["loss"])])
def test_well_formed_host_calls_are_returned_unchanged(host_call):
    assert validate_host_call(host_call) is host_call


@pytest.mark.parametrize(
    "host_call,message",
    [
        (two, r"must be \(function, \[argument"),
        ((two,), r"must be \(function, \[argument"),
        ((two, [1, 2], [], []), r"must be \(function, \[argument"),
        (("two", [1, 2]), "Received: 'two' as function, which is not callable"),
        ((two, 1), "Received: int as item 2. Wrap it in a list"),
        ((two, [1, 2], "loss"), "Received: str as item 3. Wrap it in a list"),
        ((two, [1]), "with 1 arguments"),
        ((two, [1, 2, 3]), "with 3 arguments"),
    ],
)
def test_malformed_host_calls_are_refused_with_the_reason(host_call, message):
    with pytest.raises(ConfigError, match=message):
        validate_host_call(host_call)


def test_list_results_are_named_by_position_and_only_pairs_are_kept():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tensors = [tf.constant([1, 0, 1]), tf.constant([1, 1, 1])]
        metrics = host_call_to_eval_metric_ops((metric_pairs, tensors))
        assert list(metrics) == ["elem_0", "elem_2"]
        session.run(tf.compat.v1.local_variables_initializer())
        session.run([update for _, update in metrics.values()])
        assert session.run(metrics["elem_0"][0]) == pytest.approx(2 / 3)
        assert session.run(metrics["elem_2"][0]) == 1.0


def test_dict_results_keep_their_names():
    with tf.Graph().as_default():
        pair = tf.compat.v1.metrics.mean(tf.constant([1.0]))
        metrics = host_call_to_eval_metric_ops((lambda: {"a": pair, "b": tf.constant(1)}, []))
        assert metrics == {"a": pair}


def test_another_result_is_refused():
    with pytest.raises(ConfigError, match="must return a dict, tuple or list.*Received: int"):
        host_call_to_eval_metric_ops((lambda: 3, []))
