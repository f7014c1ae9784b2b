"""Checks what is asked of a model's graph: where variables start, which inputs and ops it has."""

from __future__ import annotations

import pytest

pytest.importorskip("tensorflow")

import numpy as np
import tensorflow as tf

from cerebras_tf import cross_wafer_sum
from cerebras_tf.errors import UnsupportedOpError
from cerebras_tf.estimator import model_graph
from cerebras_tf.estimator.model_graph import _has_own_summaries, record
from tests.estimator import regression
from tests.estimator.regression import assert_equal, build, dataset, variables_of

pytestmark = pytest.mark.tf
v1 = tf.compat.v1


def test_warm_start_takes_all_variables_of_a_folder(tmp_path):
    build(tmp_path / "first").train(dataset, max_steps=3)
    second = build(tmp_path / "second", {"rate": 0.0}, warm_start_from=str(tmp_path / "first"))
    second.train(dataset, max_steps=1)
    before, after = variables_of(tmp_path / "first"), variables_of(tmp_path / "second")
    np.testing.assert_array_equal(after["layer/kernel"], before["layer/kernel"])
    np.testing.assert_array_equal(after["output"], before["output"])


def test_warm_start_settings_choose_and_rename_variables(tmp_path):
    build(tmp_path / "first").train(dataset, max_steps=3)

    def renamed(features, labels, mode, params):
        with v1.variable_scope("new"):
            return regression.model_fn(features, labels, mode, params)

    settings = tf.estimator.WarmStartSettings(
        str(tmp_path / "first"),
        vars_to_warm_start="new/layer/.*",
        var_name_to_prev_var_name={"new/layer/kernel": "layer/kernel"},
    )
    second = build(tmp_path / "second", {"rate": 0.0}, renamed, warm_start_from=settings)
    second.train(dataset, max_steps=1)
    before, after = variables_of(tmp_path / "first"), variables_of(tmp_path / "second")
    np.testing.assert_array_equal(after["new/layer/kernel"], before["layer/kernel"])
    np.testing.assert_array_equal(after["new/output"], regression._start(2, 1))


def with_scaffold(**fields):
    def model(features, labels, mode, params):
        spec = regression.model_fn(features, labels, mode, params)
        return spec._replace(scaffold=v1.train.Scaffold(**fields))

    return model


def test_a_scaffolds_init_fn_may_set_variables(tmp_path):
    def init_fn(scaffold, session):
        kernel = next(v for v in v1.global_variables() if v.op.name == "layer/kernel")
        kernel.load(np.full([3, 2], 0.25, np.float32), session)

    build(tmp_path, {"rate": 0.0}, with_scaffold(init_fn=init_fn)).train(dataset, max_steps=1)
    np.testing.assert_array_equal(variables_of(tmp_path)["layer/kernel"], np.full([3, 2], 0.25))


def test_a_scaffolds_init_op_may_set_variables(tmp_path):
    def model(features, labels, mode, params):
        spec = regression.model_fn(features, labels, mode, params)
        kernel = v1.trainable_variables()[0]
        init_op = v1.assign(kernel, np.full([3, 2], 0.5, np.float32)).op
        return spec._replace(scaffold=v1.train.Scaffold(init_op=init_op))

    build(tmp_path, {"rate": 0.0}, model).train(dataset, max_steps=1)
    np.testing.assert_array_equal(variables_of(tmp_path)["layer/kernel"], np.full([3, 2], 0.5))


def test_a_users_scaffold_does_not_bring_variables_into_the_session(tmp_path):
    model = with_scaffold(saver=None, summary_op=None)
    for use_cs in (False, True):
        made = build(tmp_path / str(use_cs), model=model)
        made.train(dataset, max_steps=3, use_cs=use_cs)
    assert_equal(variables_of(tmp_path / "True"), variables_of(tmp_path / "False"), 1e-5)


def structured(features, labels, mode, params):
    """Features are a dict with a tuple; labels may be None."""
    joined = tf.concat([features["a"], features["rest"][0], features["rest"][1]], 1)
    labels = tf.zeros([tf.shape(joined)[0]]) if labels is None else labels["score"][:, 0]
    return regression.model_fn(joined, labels, mode, params)


@pytest.mark.parametrize("labelled", [True, False])
def test_features_and_labels_may_be_structures_or_missing(tmp_path, labelled):
    def input_fn():
        features, labels = regression.data()
        parts = {"a": features[..., :1], "rest": (features[..., 1:2], features[..., 2:])}
        given = (parts, {"score": labels[..., None]}) if labelled else parts
        return tf.data.Dataset.from_tensor_slices(given).repeat()

    for use_cs in (False, True):
        made = build(tmp_path / str(use_cs), model=structured)
        made.train(input_fn, max_steps=3, use_cs=use_cs)
    assert_equal(variables_of(tmp_path / "True"), variables_of(tmp_path / "False"), 1e-5)


def test_batches_of_several_shapes_train_as_on_the_host(tmp_path):
    for use_cs in (False, True):
        build(tmp_path / str(use_cs)).train(regression.ragged_dataset, use_cs=use_cs)
    assert variables_of(tmp_path / "True")["global_step"] == 5
    assert_equal(variables_of(tmp_path / "True"), variables_of(tmp_path / "False"), 1e-5)


def test_unsupported_operations_are_all_named_before_the_first_step(tmp_path):
    def model(features, labels, mode, params):
        spec = regression.model_fn(features, labels, mode, params)
        kernel = v1.trainable_variables()[0]
        square = kernel[:2, :2] + tf.eye(2)
        bad = tf.reduce_sum(tf.math.special.spence(square))
        bad += tf.reduce_sum(tf.math.special.spence(2 * square) + tf.math.special.dawsn(square))
        train_op = v1.train.GradientDescentOptimizer(0.1).minimize(spec.loss + bad)
        return spec._replace(loss=spec.loss + bad, train_op=train_op)

    with pytest.raises(UnsupportedOpError) as raised:
        build(tmp_path, model=model).train(dataset, max_steps=1)
    message = str(raised.value)
    assert "2 TensorFlow op types have no IR form" in message
    assert "Spence (2x, 'spence/Spence', built at test_model_graph.py:" in message
    assert "Dawsn (1x, " in message
    assert tf.train.latest_checkpoint(str(tmp_path)) is None


@pytest.mark.parametrize(
    ("shown", "own"),
    [
        (lambda loss, weight: None, False),
        (lambda loss, weight: loss, False),
        (lambda loss, weight: tf.norm(tf.gradients(loss, weight)[0]), False),
        (lambda loss, weight: tf.norm(weight), False),
        (lambda loss, weight: cross_wafer_sum(loss * 2.0), False),
        (lambda loss, weight: loss * 2.0, False),
        (lambda loss, weight: loss.op.inputs[0], True),
        (lambda loss, weight: tf.gradients(loss, loss.op.inputs[0].op.inputs[0])[0], True),
    ],
)
def test_summaries_of_one_wafers_batch_are_told_from_those_of_all(shown, own):
    def model():
        spec = regression.model_fn(*batch, tf.estimator.ModeKeys.TRAIN, {})
        found = shown(spec.loss, v1.trainable_variables()[0])
        if found is not None:
            v1.summary.histogram("shown", found)
        return spec

    with tf.Graph().as_default():
        v1.train.create_global_step()
        batch = [v1.placeholder(tf.float32, [4, 3]), v1.placeholder(tf.float32, [4])]
        assert _has_own_summaries(record(model), batch) == own


def test_one_wafer_spares_the_walk_over_what_its_summaries_show(tmp_path, monkeypatch):
    monkeypatch.setattr(model_graph, "_has_own_summaries", None)
    build(tmp_path).train(dataset, max_steps=1)
