"""Checks that a spec with a host call is still an EstimatorSpec, through copies too."""

from __future__ import annotations

import copy

import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

from cerebras_tf.errors import ConfigError
from cerebras_tf.estimator.spec import CSEstimatorSpec

pytestmark = pytest.mark.tf

EVAL = tf.estimator.ModeKeys.EVAL


def accuracy(labels, predictions):
    return {"accuracy": tf.compat.v1.metrics.accuracy(labels, predictions)}


def build_spec(**kwargs):
    loss = tf.constant(1.0)
    return CSEstimatorSpec(EVAL, loss=loss, **kwargs)


def test_spec_is_an_estimator_spec_with_a_host_call(graph):
    host_call = (accuracy, [tf.constant([1]), tf.constant([1])])
    spec = build_spec(host_call=host_call)
    assert isinstance(spec, tf.estimator.EstimatorSpec)
    assert CSEstimatorSpec.__name__ == "CSEstimatorSpec"
    assert spec.host_call is host_call
    assert spec._fields == tf.estimator.EstimatorSpec._fields


def test_host_call_is_none_where_none_is_given(graph):
    assert build_spec().host_call is None
    assert build_spec(host_call=()).host_call is None


def test_replace_keeps_the_class_and_the_host_call(graph):
    spec = build_spec(host_call=(accuracy, [tf.constant([1]), tf.constant([1])]))
    loss = tf.constant(2.0)
    replaced = spec._replace(loss=loss)
    assert type(replaced) is CSEstimatorSpec
    assert replaced.loss is loss
    assert replaced.host_call is spec.host_call
    assert replaced._replace(host_call=None).host_call is None


def test_replace_refuses_another_mode_and_unknown_fields(graph):
    with pytest.raises(ConfigError, match="mode of a spec cannot be changed"):
        build_spec()._replace(mode=tf.estimator.ModeKeys.TRAIN)
    with pytest.raises(TypeError):
        build_spec()._replace(lost=1)


def test_shallow_copy_keeps_every_field(graph):
    spec = build_spec(host_call=(accuracy, [tf.constant([1]), tf.constant([1])]))
    twin = copy.copy(spec)
    assert twin.loss is spec.loss
    assert twin.host_call is spec.host_call


def test_host_call_and_eval_metric_ops_exclude_each_other(graph):
    metrics = accuracy(tf.constant([1]), tf.constant([1]))
    with pytest.raises(ConfigError, match="only one of host_call .*accuracy"):
        build_spec(host_call=(accuracy, [1, 1]), eval_metric_ops=metrics)


def test_tensorflows_own_validation_still_runs(graph):
    with pytest.raises(ValueError, match="Missing loss"):
        CSEstimatorSpec(EVAL)
