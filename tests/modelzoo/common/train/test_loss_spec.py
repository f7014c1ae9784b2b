"""Tests of what a model_fn ends in: a training operation, or metrics where they are wanted."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow.compat.v1")

from modelzoo.common.config.sections import ConstantRate, OptimizerParams
from modelzoo.common.train.loss_spec import loss_spec

MODES = tf.estimator.ModeKeys


def params(**eval_input):
    rate = (ConstantRate("Constant", 0.5),)
    return SimpleNamespace(
        model=SimpleNamespace(mixed_precision=False),
        optimizer=OptimizerParams(optimizer_type="sgd", learning_rate=rate),
        eval_input=SimpleNamespace(**eval_input),
        batches_in_turn=1,
        runconfig=SimpleNamespace(micro_batches=1),
    )


def make(mode, summaries=None, **eval_input):
    """The spec of the loss w^2, and the tags of its graph's summaries."""

    def metrics():
        return lambda value: {"square": (value, value)}, [loss]

    loss = tf.get_variable("w", initializer=3.0) ** 2
    spec = loss_spec(mode, params(**eval_input), [(loss, 1)], metrics, summaries)
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
        assert spec.host_call[0](*spec.host_call[1]).keys() == {"square", "loss"}
        assert spec.train_op is None and not names


def test_evaluation_without_metrics_makes_the_loss_alone():
    with tf.Graph().as_default():
        spec, _ = make(MODES.EVAL, disable_eval_metrics=True)
        assert spec.host_call[0](*spec.host_call[1]).keys() == {"loss"}


def test_loss_of_an_evaluation_weighs_each_cost_by_what_it_is_the_mean_of():
    costs, counts, others = [2.0, 5.0, 1.0], [10, 3, 0], [0.5, 1.5, 2.5]
    with tf.Graph().as_default(), tf.Session() as session:
        fed = [tf.placeholder(tf.float32, []) for _ in range(3)]
        cost, count, other = fed
        pairs = [(cost, count), (other, tf.constant(4))]
        spec = loss_spec(MODES.EVAL, params(), pairs, lambda: (dict, []))
        value, update = spec.host_call[0](*spec.host_call[1])["loss"]
        session.run(tf.local_variables_initializer())
        for batch in zip(costs, counts, others):
            session.run(update, dict(zip(fed, batch)))
        assert session.run(value) == pytest.approx(35 / 13 + 1.5)
