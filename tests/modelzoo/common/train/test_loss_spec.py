"""What a model_fn ends in, and predictions of some batches."""

from __future__ import annotations

import json
import logging
import types
from types import SimpleNamespace

import numpy as np
import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow.compat.v1")

from cerebras_tf.errors import DataError
from modelzoo.common.config.sections import ConstantRate, OptimizerParams
from modelzoo.common.train import predictions
from modelzoo.common.train.loss_spec import loss_spec
from tests.messages import raises

MODES = tf.estimator.ModeKeys


def params(**eval_input):
    rate = (ConstantRate("Constant", 0.5),)
    return SimpleNamespace(
        model=SimpleNamespace(mixed_precision=False),
        optimizer=OptimizerParams(optimizer_type="sgd", learning_rate=rate),
        eval_input=SimpleNamespace(**eval_input),
        batches_per_process=1,
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


class Estimator:
    """Predicts of every number that it is that number, and counts batches."""

    batches = 0

    def predict(self, input_fn, **given):
        with tf.Graph().as_default(), tf.Session() as session:
            batch = tf.data.make_one_shot_iterator(input_fn({})).get_next()
            while True:
                try:
                    found = session.run(batch)
                except tf.errors.OutOfRangeError:
                    return
                self.batches += 1
                yield from ({"number": number} for number in found["number"])


@pytest.mark.parametrize(("rows", "steps", "others"), [(11, 2, True), (8, 2, False), (6, 9, False)])
def test_only_batches_that_are_predicted_are_computed(rows, steps, others, monkeypatch):
    lines, estimator = [], Estimator()
    monkeypatch.setattr(predictions, "log_skipped_batches", lines.append)
    params = types.SimpleNamespace(
        runconfig=types.SimpleNamespace(predict_steps=steps), predict_input=None
    )

    def input_fn(params):
        return tf.data.Dataset.from_tensor_slices({"number": np.arange(rows)}).batch(4)

    inputs = types.SimpleNamespace(predict=input_fn)
    found = list(predictions.predicted_rows(estimator, inputs, params, "it", True))
    assert [row["number"] for row in found] == list(range(min(rows, 4 * steps)))
    assert estimator.batches == min(steps, -(-rows // 4)) and bool(lines) == others


def test_no_row_at_all_is_refused():
    params = types.SimpleNamespace(
        runconfig=types.SimpleNamespace(predict_steps=2),
        predict_input=types.SimpleNamespace(skip_steps=3),
    )
    inputs = types.SimpleNamespace(predict=lambda params: tf.data.Dataset.range(0).batch(4))
    with raises(DataError, "at least one row"):
        list(predictions.predicted_rows(Estimator(), inputs, params, "it", True))


def test_a_step_has_the_scores_of_its_last_predictions(tmp_path, caplog, monkeypatch):
    caplog.set_level(logging.INFO, "tensorflow")
    monkeypatch.setattr(predictions, "predicted_step", lambda checkpoint_path: 100)
    predictions.write_scores(tmp_path, "ckpt", {"f1": 2.0, "r-recall": 1.0})
    assert "step 100: f1 2.00" in caplog.text and "recall" not in caplog.text
    caplog.clear()
    for removed in (True, False):
        predictions.write_scores(tmp_path, "ckpt", {})
        assert json.loads((tmp_path / "scores.json").read_text()) == {}
        assert ("scores of earlier predictions of step 100" in caplog.text) is removed
        caplog.clear()
