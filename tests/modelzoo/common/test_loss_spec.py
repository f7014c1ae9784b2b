"""Tests of what a model_fn ends in: a training operation, or metrics where they are wanted."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow.compat.v1")

from modelzoo.common.loss_spec import loss_spec  # noqa: E402
from modelzoo.common.sections import ConstantRate, OptimizerParams  # noqa: E402

MODES = tf.estimator.ModeKeys


def params(**eval_input):
    rate = (ConstantRate("Constant", 0.5),)
    return SimpleNamespace(
        model=SimpleNamespace(mixed_precision=False),
        optimizer=OptimizerParams(optimizer_type="sgd", learning_rate=rate),
        eval_input=SimpleNamespace(**eval_input),
        batches_per_step=1,
    )


def make(mode, summaries=None, **eval_input):
    """The spec of the loss w^2, and the tags of its graph's summaries."""
    loss = tf.get_variable("w", initializer=3.0) ** 2
    spec = loss_spec(mode, params(**eval_input), loss, lambda: (max, [loss]), summaries)
    scalars = tf.get_collection(tf.GraphKeys.SUMMARIES)
    return spec, {scalar.op.name for scalar in scalars}


def test_training_updates_the_variables_and_shows_the_loss():
    with tf.Graph().as_default(), tf.Session() as session:
        spec, names = make(MODES.TRAIN)
        session.run(tf.global_variables_initializer())
        session.run(spec.train_op)
        assert session.run(tf.trainable_variables()) == [0.0]
        assert spec.host_call is None
        assert {"train/cost", "train/lr"} <= names


def test_training_shows_the_given_scalars_instead():
    with tf.Graph().as_default():
        _, names = make(MODES.TRAIN, {"other": tf.constant(1.0)})
        assert "other" in names and "train/cost" not in names


@pytest.mark.parametrize("section", [{}, {"disable_eval_metrics": False}])
def test_evaluation_asks_for_the_metrics(section):
    with tf.Graph().as_default():
        spec, names = make(MODES.EVAL, **section)
        assert spec.host_call[0] is max and spec.host_call[1] == [spec.loss]
        assert spec.train_op is None and not names


def test_evaluation_without_metrics_makes_none():
    with tf.Graph().as_default():
        spec, _ = make(MODES.EVAL, disable_eval_metrics=True)
        assert spec.host_call is None
