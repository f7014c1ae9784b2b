"""Checks that callers of tf.estimator.Estimator find what they know: arguments, errors, roles."""

from __future__ import annotations

import pytest

pytest.importorskip("tensorflow")

import numpy as np
import tensorflow as tf

from cerebras_tf import CerebrasEstimator
from cerebras_tf.errors import CheckpointError, NumericsError
from tests.estimator import regression
from tests.estimator.regression import build, dataset
from tests.messages import raises

pytestmark = pytest.mark.tf
v1 = tf.compat.v1
ModeKeys = tf.estimator.ModeKeys


def test_the_config_reads_as_it_was_given_and_nothing_is_said_twice(tmp_path, caplog):
    seen = []

    def model(features, labels, mode, params, config):
        seen.append(config.log_step_count_steps)
        return regression.model_fn(features, labels, mode, params)

    made = build(tmp_path, model=model, log_step_count_steps=7, save_summary_steps=7)
    assert made.config.log_step_count_steps == 7
    with caplog.at_level("INFO", logger="tensorflow"):
        made.train(dataset, max_steps=14)
    assert seen == [7]
    lines = [record.getMessage() for record in caplog.records]
    shown = [line.split()[2] for line in lines if line.startswith("global_step = ")]
    assert shown == ["1,", "7,", "14,"]
    assert not [line for line in lines if "global_step/sec" in line or line.startswith("loss = ")]


def test_changing_the_config_it_gives_changes_nothing(tmp_path):
    made = build(tmp_path)
    made.config._log_step_count_steps = 3
    assert made.config.log_step_count_steps is None
    assert made.config.model_dir == made.model_dir == str(tmp_path)


def count_model(features, labels, mode):
    """Has no variables, as the models of tf.estimator's own tests."""
    step = v1.train.get_global_step()
    return tf.estimator.EstimatorSpec(
        mode,
        loss=tf.constant(1.0),
        train_op=v1.assign_add(step, 1),
        predictions=tf.constant([[1.0]]),
    )


class Told(tf.estimator.SessionRunHook):
    """Remembers what it was told."""

    def __init__(self, log=None, name=""):
        self.log = [] if log is None else log
        self._name = name

    def begin(self):
        self.log.append(f"{self._name}begin")

    def after_run(self, run_context, run_values):
        self.log.append(f"{self._name}after_run")


def nan_dataset():
    features, labels = regression.data()
    return tf.data.Dataset.from_tensors((features[0], labels[0] * np.nan)).repeat()


def test_given_hooks_see_a_step_before_its_nan_ends_training(tmp_path):
    hook, own = Told(), Told()
    made = build(tmp_path, {"hooks": lambda loss: [own]})
    with pytest.raises(tf.estimator.NanLossDuringTrainingError) as raised:
        made.train(nan_dataset, hooks=[hook], max_steps=2)
    assert isinstance(raised.value, NumericsError)
    assert "step 1: the loss must be finite. Received: nan" in str(raised.value)
    assert hook.log == ["begin", "after_run"]
    assert own.log == ["begin"]


@pytest.mark.parametrize("own_saver", [False, True])
def test_a_nan_loss_is_not_saved_though_savers_come_before_the_given_hooks(tmp_path, own_saver):
    hooks = []
    if own_saver:
        hooks = [v1.train.CheckpointSaverHook(str(tmp_path), save_steps=1)]
    made = build(tmp_path, save_checkpoints_steps=1)
    with pytest.raises(NumericsError):
        made.train(nan_dataset, hooks=hooks, max_steps=2)
    saved = regression.variables_of(tmp_path)
    assert all(np.isfinite(content).all() for content in saved.values())


def test_hooks_come_in_tf_estimators_order(tmp_path):
    def model(features, labels, mode, params):
        spec = regression.model_fn(features, labels, mode, params)
        saver = v1.train.CheckpointSaverHook(params["dir"], save_steps=9)
        return spec._replace(
            training_hooks=[Told(logs[-1], "model ")],
            training_chief_hooks=[Told(logs[-1], "chief "), saver],
        )

    logs = []
    for use_cs in (False, True):
        logs.append([])
        folder = tmp_path / str(use_cs)
        made = build(folder, {"dir": str(folder)}, model=model, use_cs=use_cs)
        made.train(dataset, hooks=[Told(logs[-1], "given ")], max_steps=2)
    order = ["chief ", "given ", "model "]
    assert logs[1] == [f"{n}begin" for n in order] + [f"{n}after_run" for n in order] * 2
    assert logs[0] == logs[1]


def test_subclasses_may_add_methods_but_override_none():
    class Adds(CerebrasEstimator):
        def more(self):
            return 1

    class Overrides(CerebrasEstimator):
        def predict(self):
            return 1

    assert Adds(count_model).more() == 1
    with pytest.raises(ValueError, match="cannot override members of Estimator.*predict"):
        Overrides(count_model)


REFUSED = [
    (lambda made: made.train(dataset, steps=1, max_steps=1), ValueError, "both steps and max"),
    (lambda made: made.train(dataset, steps=0), ValueError, "Must specify steps > 0"),
    (lambda made: made.train(dataset, max_steps=-1), ValueError, "Must specify max_steps > 0"),
    (lambda made: made.train(dataset, hooks=["NotAHook"], steps=1), TypeError, "SessionRunHook"),
    (
        lambda made: made.train(dataset, saving_listeners=["no"], steps=1),
        TypeError,
        "saving_listeners must be a list of CheckpointSaverListener",
    ),
    (lambda made: made.evaluate(dataset, steps=-1), ValueError, "Must specify steps > 0"),
    (lambda made: made.evaluate(dataset, hooks=["NotAHook"]), TypeError, "SessionRunHook"),
    (lambda made: next(made.predict(dataset, hooks=["no"])), TypeError, "SessionRunHook"),
    (lambda made: next(made.predict(dataset, ["other"])), ValueError, "Expected to run at least"),
    (lambda made: made.get_variable_names(), ValueError, "Could not find trained model"),
    (lambda made: made.export_saved_model("x", None), ValueError, "input_receiver_fn must be"),
]


@pytest.mark.parametrize("call, kind, text", REFUSED)
def test_arguments_are_refused_as_tf_estimator_refuses_them(tmp_path, call, kind, text):
    with pytest.raises(kind, match=text):
        call(build(tmp_path))


@pytest.mark.parametrize("listeners", [None, [tf.estimator.CheckpointSaverListener()]])
def test_saving_listeners_need_a_saver(tmp_path, listeners):
    made = build(tmp_path, save_checkpoints_steps=None, save_checkpoints_secs=None)
    if listeners:
        with pytest.raises(ValueError, match="There should be a CheckpointSaverHook"):
            made.train(dataset, steps=1, saving_listeners=listeners)
    else:
        made.train(dataset, steps=1)
        assert made.latest_checkpoint() is None


@pytest.mark.parametrize("method", ["train", "evaluate", "predict"])
@pytest.mark.parametrize("place", ["input_fn", "model_fn"])
def test_errors_of_a_users_functions_pass_through_unchanged(tmp_path, method, place):
    error = KeyError("own")

    def broken(*args, **kwargs):
        raise error

    model = (lambda features, labels, mode, params: broken()) if place == "model_fn" else None
    made = build(tmp_path, model=model or regression.model_fn)
    with pytest.raises(KeyError) as raised:
        list(getattr(made, method)(broken if place == "input_fn" else dataset) or [])
    assert raised.value is error


def numbered_model(features, labels, mode, params):
    """Features and predictions with whole numbers among their keys."""
    both = [features[0], features[params["second"]]]
    spec = regression.model_fn(sum(both), labels, mode, params)
    if mode == ModeKeys.PREDICT:
        return spec._replace(predictions={0: spec.predictions["scores"], 1: both[1]})
    return spec


@pytest.mark.parametrize("second", [1, "b"])
def test_features_may_have_whole_numbers_as_keys(tmp_path, second):
    def input_fn():
        features, labels = v1.data.make_one_shot_iterator(dataset().take(2)).get_next()
        return {0: features, second: features * 0.5}, labels

    found = []
    for use_cs in (False, True):
        params = {"second": second}
        made = build(tmp_path / str(use_cs), params, numbered_model, save_summary_steps=1)
        made.train(input_fn, use_cs=use_cs)
        found.append(made.evaluate(input_fn, use_cs=use_cs)["loss"])
        if second == 1:  # tf.estimator itself predicts from keys of one kind alone
            found.append(next(made.predict(input_fn, use_cs=use_cs))[0])
    half = len(found) // 2
    np.testing.assert_allclose(found[half:], found[:half], rtol=1e-5)


def test_a_folder_given_twice_must_be_the_same(tmp_path):
    config = tf.estimator.RunConfig(model_dir=str(tmp_path / "one"))
    assert CerebrasEstimator(count_model, str(tmp_path / "one"), config=config)
    with pytest.raises(ValueError, match="`model_dir` are set both in constructor and `RunConfig`"):
        CerebrasEstimator(count_model, str(tmp_path / "two"), config=config)
    with pytest.raises(ValueError, match="config must be an instance of `RunConfig`"):
        CerebrasEstimator(count_model, config={})


def test_variables_and_checkpoints_are_found_by_the_estimator(tmp_path):
    made = build(tmp_path)
    assert made.latest_checkpoint() is None
    made.train(dataset, max_steps=2)
    assert made.latest_checkpoint() == str(tmp_path / "model.ckpt-2")
    assert set(made.get_variable_names()) == set(regression.variables_of(tmp_path))
    assert made.get_variable_value("layer/kernel").shape == (3, 2)
    assert made.eval_dir() == str(tmp_path / "eval")
    assert made.eval_dir("own") == str(tmp_path / "eval_own")


def test_max_steps_that_are_reached_already_train_nothing(tmp_path):
    made = build(tmp_path)
    made.train(dataset, max_steps=2)
    told = Told()
    made.train(dataset, hooks=[told], max_steps=2)
    assert told.log == []
    made.train(dataset, hooks=[told], steps=1)
    assert made.get_variable_value("global_step") == 3


def test_training_ends_with_the_data_before_its_steps_do(tmp_path):
    made = build(tmp_path)
    made.train(lambda: dataset().take(3), steps=10)
    assert made.get_variable_value("global_step") == 3


def summaries(folder):
    found = {}
    for path in sorted(folder.glob("events.out.tfevents.*")):
        for event in v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                found.setdefault(value.tag, []).append((event.step, value))
    return found


def test_evaluations_write_the_summaries_of_the_host(tmp_path):
    made = build(tmp_path)
    made.train(dataset, max_steps=3)
    for use_cs in (False, True):
        made.evaluate(dataset, steps=3, use_cs=use_cs, name=str(use_cs))
    host, wafer = (summaries(tmp_path / f"eval_{use_cs}") for use_cs in (False, True))
    assert set(host) == set(wafer) == {"loss", "error", "positive", "checkpoint_path"}
    for tag, ((step, value),) in host.items():
        assert wafer[tag][0][0] == step == 3
        assert wafer[tag][0][1].simple_value == pytest.approx(value.simple_value, rel=1e-5)


def test_an_untrained_model_evaluates_and_predicts_with_its_first_values(tmp_path):
    made = build(tmp_path)
    found = [made.evaluate(dataset, steps=2, use_cs=use_cs) for use_cs in (False, True)]
    assert found[1]["loss"] == pytest.approx(found[0]["loss"], rel=1e-5)
    assert found[1]["global_step"] == 0
    rows = [next(made.predict(dataset, use_cs=use_cs))["scores"] for use_cs in (False, True)]
    assert rows[1] == pytest.approx(rows[0], rel=1e-5)


def test_an_untrained_model_is_warm_started_for_evaluation_and_prediction(tmp_path):
    build(tmp_path / "first").train(dataset, max_steps=3)
    made = build(tmp_path / "second", warm_start_from=str(tmp_path / "first"))
    expected = build(tmp_path / "first").evaluate(dataset, steps=2)["loss"]
    assert made.evaluate(dataset, steps=2)["loss"] == pytest.approx(expected, rel=1e-5)
    rows = [next(e.predict(dataset))["scores"] for e in (made, build(tmp_path / "first"))]
    assert rows[0] == rows[1]
    mistaken = build(tmp_path / "third", warm_start_from=str(tmp_path / "first/model.ckpt-3.index"))
    with raises(CheckpointError, "path without .index"):
        mistaken.train(dataset, max_steps=1)


@pytest.mark.parametrize("name", ["loss", "global_step"])
def test_metrics_may_not_take_the_names_of_tf_estimators_own(tmp_path, name):
    def model(features, labels, mode, params):
        spec = regression.model_fn(features, labels, mode, params)
        return spec._replace(eval_metric_ops={name: v1.metrics.mean(spec.loss)})

    with pytest.raises(ValueError, match=f"Metric with name .{name}. is not allowed"):
        build(tmp_path, model=model).evaluate(dataset, steps=1)


@pytest.mark.parametrize("other", [None, ("a", "b"), 3])
def test_a_model_fn_must_return_a_spec(tmp_path, other):
    def model(features, labels, mode, params):
        return other

    with pytest.raises(ValueError, match="model_fn should return an EstimatorSpec"):
        build(tmp_path, model=model).train(dataset, steps=1)


def test_labels_that_a_model_does_not_take_are_refused(tmp_path):
    def model(features, mode):
        return count_model(features, None, mode)

    with pytest.raises(ValueError, match="model_fn does not take labels"):
        CerebrasEstimator(model, str(tmp_path)).train(dataset, steps=1)


def test_predictions_of_differing_lengths_are_refused_one_by_one(tmp_path):
    def model(features, labels, mode, params):
        spec = regression.model_fn(features, labels, mode, params)
        return spec._replace(predictions={**spec.predictions, "more": tf.zeros([7])})

    made = build(tmp_path, model=model)
    with pytest.raises(ValueError, match="Batch length of predictions should be same"):
        next(made.predict(dataset))
    assert next(made.predict(dataset, yield_single_examples=False))["more"].shape == (7,)


def test_the_public_model_fn_and_added_metrics_work(tmp_path):
    made = build(tmp_path)
    made.train(dataset, max_steps=2)

    def more(labels, predictions):
        return {"mean": v1.metrics.mean(predictions["scores"])}

    found = tf.estimator.add_metrics(made, more).evaluate(dataset, steps=2)
    plain = made.evaluate(dataset, steps=2)
    assert set(found) - set(plain) == {"mean"}
    assert found["loss"] == pytest.approx(plain["loss"], rel=1e-5)
