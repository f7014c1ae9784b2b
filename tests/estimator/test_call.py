"""Checks that calls which overlap (suspended, nested, in another place) leave each other alone."""

from __future__ import annotations

import pytest

pytest.importorskip("tensorflow")

import numpy as np
import tensorflow as tf

from cerebras_tf.errors import NumericsError
from cerebras_tf.estimator.call import CallContext
from tests.estimator import regression
from tests.estimator.regression import build, dataset, models_built, variables_of

pytestmark = pytest.mark.tf
v1 = tf.compat.v1


def eval_spec(**settings):
    return tf.estimator.EvalSpec(
        regression.ragged_dataset, steps=None, start_delay_secs=0, throttle_secs=0, **settings
    )


def test_training_is_on_the_wafer_while_a_prediction_on_the_host_is_suspended(tmp_path):
    made = build(tmp_path)
    made.train(dataset, max_steps=1)
    with models_built() as models:
        suspended = made.predict(dataset, use_cs=False)
        next(suspended)
        assert models == []
        made.train(dataset, max_steps=2)
        assert len(models) == 1
        next(suspended)
        suspended.close()


def test_a_prediction_stays_where_it_began_while_others_train_and_evaluate(tmp_path):
    made = build(tmp_path, use_cs=False)
    made.train(dataset, max_steps=1)
    host = list(made.predict(regression.ragged_dataset))
    suspended = made.predict(regression.ragged_dataset, use_cs=True)
    with models_built() as models:
        found = [next(suspended)]
        made.train(dataset, max_steps=2)
        made.evaluate(regression.ragged_dataset)
        found.extend(suspended)
    assert len(models) == 1
    for theirs, ours in zip(host, found):
        np.testing.assert_allclose(ours["scores"], theirs["scores"], rtol=1e-5, atol=1e-6)


def test_two_suspended_predictions_give_each_its_own_rows(tmp_path):
    made = build(tmp_path)
    made.train(dataset, max_steps=1)
    expected = [item["scores"] for item in made.predict(regression.ragged_dataset)]
    pair = made.predict(regression.ragged_dataset), made.predict(regression.ragged_dataset)
    for want, first, second in zip(expected, *pair):
        assert first["scores"] == second["scores"] == want


def poison(models, step):
    """A hook that damages a weight of the training's model after a step."""

    class Poison(tf.estimator.SessionRunHook):
        def after_run(self, run_context, run_values):
            if run_context.session.run(v1.train.get_global_step()) == step:
                store = models[0].store
                (kernel,) = store.acquire(["layer/kernel"])
                kernel[0, 0] = np.nan
                store.release(["layer/kernel"], dirty=["layer/kernel"])

    return Poison()


def test_a_damaged_weight_is_not_saved_though_an_evaluation_came_before(tmp_path):
    made = build(tmp_path, save_checkpoints_steps=2)
    with models_built() as models, pytest.raises(NumericsError, match="'layer/kernel'"):
        train_spec = tf.estimator.TrainSpec(dataset, max_steps=3, hooks=[poison(models, 3)])
        tf.estimator.train_and_evaluate(made, train_spec, eval_spec())
    saved = variables_of(tmp_path)
    assert saved["global_step"] == 2
    assert all(np.isfinite(content).all() for content in saved.values())


def test_the_memory_mark_does_not_fall_after_an_evaluation(tmp_path):
    made = build(tmp_path, save_checkpoints_steps=2, save_summary_steps=1)
    train_spec = tf.estimator.TrainSpec(dataset, max_steps=4)

    def single_rows():
        features, labels = regression.data()
        return tf.data.Dataset.from_tensor_slices((features[:, :1], labels[:, :1]))

    evaluation = tf.estimator.EvalSpec(single_rows, start_delay_secs=0, throttle_secs=0)
    tf.estimator.train_and_evaluate(made, train_spec, evaluation)
    marks = [
        value.simple_value
        for path in sorted(tmp_path.glob("events.out.tfevents.*"))
        for event in v1.train.summary_iterator(str(path))
        for value in event.summary.value
        if value.tag == "wafer/memory_high_water_bytes"
    ]
    assert len(marks) == 3 and len(set(marks)) == 1


def test_train_and_evaluate_may_be_on_the_host_in_whole(tmp_path):
    made = build(tmp_path, save_checkpoints_steps=1)
    train_spec = tf.estimator.TrainSpec(dataset, max_steps=2)
    with models_built() as models:
        made.train_and_evaluate(train_spec, eval_spec(), use_cs=False)
        assert models == []
        made.evaluate(regression.ragged_dataset)
        assert len(models) == 1


def test_exporting_in_the_midst_of_training_leaves_training_on_the_wafer(tmp_path):
    def receiver():
        features = v1.placeholder(tf.float32, [None, 3])
        return tf.estimator.export.TensorServingInputReceiver(features, features)

    made = build(tmp_path / "mixed", save_checkpoints_steps=1)
    exporter = tf.estimator.LatestExporter("latest", receiver)
    with models_built() as models:
        tf.estimator.train_and_evaluate(
            made, tf.estimator.TrainSpec(dataset, max_steps=2), eval_spec(exporters=exporter)
        )
    build(tmp_path / "pure").train(dataset, max_steps=2)
    assert [model.wiring.train_op is not None for model in models][0]
    regression.assert_equal(variables_of(tmp_path / "mixed"), variables_of(tmp_path / "pure"), 0)
    assert list((tmp_path / "mixed" / "export" / "latest").glob("*/saved_model.pb"))


def test_a_hook_may_evaluate_another_estimator(tmp_path):
    other = build(tmp_path / "other", {"width": 5})
    other.train(dataset, max_steps=1)
    alone = other.evaluate(regression.ragged_dataset)

    class Evaluate(tf.estimator.SessionRunHook):
        found = []

        def after_run(self, run_context, run_values):
            self.found.append(other.evaluate(regression.ragged_dataset))

    build(tmp_path / "one").train(dataset, hooks=[Evaluate()], max_steps=2)
    build(tmp_path / "pure").train(dataset, max_steps=2)
    assert Evaluate.found == [alone, alone]
    regression.assert_equal(variables_of(tmp_path / "one"), variables_of(tmp_path / "pure"), 0)


def test_an_evaluation_within_training_reads_the_trainings_own_variables(tmp_path):
    """One store is alive; what is evaluated is the checkpoint just written."""
    made = build(tmp_path, save_checkpoints_steps=2)
    seen = []

    class Watch(tf.estimator.SessionRunHook):
        def after_run(self, run_context, run_values):
            seen.append((models[-1].store.resident_bytes, models[0].store.resident_bytes))

    with models_built() as models:
        train_spec = tf.estimator.TrainSpec(dataset, max_steps=2)
        spec = tf.estimator.EvalSpec(dataset, steps=1, hooks=[Watch()], throttle_secs=0)
        metrics, _ = tf.estimator.train_and_evaluate(made, train_spec, spec)
    assert [model.store is models[0].store for model in models] == [True, False]
    assert [own for own, _ in seen] == [0]
    assert all(trainings for _, trainings in seen)
    again = build(tmp_path).evaluate(dataset, steps=1)
    assert metrics == again


def test_an_evaluation_within_training_of_another_checkpoint_reads_that(tmp_path):
    made = build(tmp_path, save_checkpoints_steps=2)
    made.train(dataset, max_steps=2)
    first = tf.train.latest_checkpoint(str(tmp_path))
    alone = made.evaluate(dataset, steps=1, checkpoint_path=first)
    found = []

    class Evaluate(tf.estimator.CheckpointSaverListener):
        def after_save(self, session, global_step_value):
            found.append(made.evaluate(dataset, steps=1, checkpoint_path=first))

    made.train(dataset, max_steps=6, saving_listeners=[Evaluate()])
    assert found and all(result == alone for result in found)


def test_a_step_has_what_all_its_batches_have():
    call = CallContext(use_cs=True, micro_batches=2, systems=3)
    assert (call.per_step(512), call.per_step(None), call.batches_here) == (3072, None, 6)
