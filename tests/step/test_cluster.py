"""Checks that tasks of a cluster get the hooks, steps and masters that tf.estimator gives them."""

from __future__ import annotations

import json
from unittest import mock

import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf
from tensorflow.python.training import training

from cerebras_tf import CerebrasEstimator
from cerebras_tf.errors import DataError
from cerebras_tf.step import cluster
from tests.estimator.regression import dataset
from tests.estimator.test_drop_in import Told, count_model

pytestmark = pytest.mark.tf
v1 = tf.compat.v1


def in_cluster(jobs, kind, index=0):
    """TF_CONFIG for a task of a cluster."""
    cluster = {job: [f"localhost:{1230 + i}"] for i, job in enumerate(jobs)}
    config = json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})
    return mock.patch.dict("os.environ", {"TF_CONFIG": config})


def session_arguments(made):
    """What tf.estimator gives to the session of a training, which is not run."""
    with mock.patch.object(training, "MonitoredTrainingSession") as session:
        session.return_value.__enter__.return_value.should_stop.return_value = True
        made.train(dataset, steps=1)
    return session.call_args[1]


CLUSTERS = [
    (["ps", "worker", "master"], "master"),
    (["ps", "worker", "master"], "worker"),
    (["master"], "master"),
    (["master", "ps"], "master"),
    (["chief", "worker"], "worker"),
    (["chief", "worker"], "chief"),
]


@pytest.mark.parametrize("jobs, kind", CLUSTERS)
def test_in_a_cluster_sessions_get_the_hooks_steps_and_master_of_tf_estimator(tmp_path, jobs, kind):
    kinds = (
        v1.train.SummarySaverHook,
        v1.train.StepCounterHook,
        v1.train.LoggingTensorHook,
        v1.train.NanTensorHook,
        v1.train.StopAtStepHook,
    )
    found = []
    for place, make in enumerate((tf.estimator.Estimator, CerebrasEstimator)):
        with in_cluster(jobs, kind):
            config = tf.estimator.RunConfig(model_dir=str(tmp_path / str(place)))
            made = make(count_model, config=config)
            assert made.config.master == config.master
        given = session_arguments(made)
        hooks = [type(hook) for hook in given.pop("hooks") if isinstance(hook, kinds)]
        plain = ("log_step_count_steps", "save_summaries_steps", "master", "is_chief")
        found.append((hooks, {name: given[name] for name in plain}))
    assert found[0] == found[1]


class NonChief(tf.estimator.RunConfig):
    """A worker's view of a training that another task leads."""

    @property
    def is_chief(self):
        return False


def test_hooks_of_the_chief_are_not_called_on_a_worker(tmp_path):
    chief, worker = Told(), Told()

    def model(features, labels, mode):
        spec = count_model(features, labels, mode)
        return spec._replace(training_hooks=[worker], training_chief_hooks=[chief])

    def session_of_a_chief(self, master, config=None, max_wait_secs=None):
        session = v1.Session(master, config=config)
        session.run(v1.train.Scaffold().finalize().init_op)
        return session

    made = CerebrasEstimator(model, config=NonChief(model_dir=str(tmp_path)))
    with mock.patch.object(training.SessionManager, "wait_for_session", session_of_a_chief):
        made.train(dataset, steps=2)
    assert chief.log == []
    assert worker.log == ["begin", "after_run", "after_run"]
    assert tf.train.latest_checkpoint(str(tmp_path)) is None


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("steps", [None, 5])
@pytest.mark.parametrize("dealt", [False, True])
def test_an_evaluation_of_some_steps_has_as_many_batches_in_all(monkeypatch, rank, steps, dealt):
    monkeypatch.setattr(cluster.job, "wafers", lambda: 2)
    monkeypatch.setattr(cluster.job, "rank", lambda: rank)
    batches = tf.data.Dataset.range(8)
    given = batches.shard(2, rank) if dealt else batches
    found = cluster.shard_batches(given, tf.estimator.ModeKeys.EVAL, steps, dealt)
    assert list(found.as_numpy_iterator()) == list(range(rank, steps or 8, 2))


@pytest.mark.parametrize("is_used", [False, True])
def test_each_wafer_has_its_own_data_whether_the_input_function_uses_its_context(
    monkeypatch, tmp_path, is_used
):
    monkeypatch.setattr(cluster.job, "wafers", lambda: 2)
    monkeypatch.setattr(cluster.job, "rank", lambda: 1)

    def count_up(input_context=None):
        numbers = tf.data.Dataset.range(6)
        return numbers.shard(2, input_context.input_pipeline_id) if is_used else numbers

    made = CerebrasEstimator(count_model, str(tmp_path))
    found = made._in_call(True)._call_input_fn(count_up, tf.estimator.ModeKeys.TRAIN)
    assert list(found.as_numpy_iterator()) == [1, 3, 5]


@pytest.mark.parametrize("mode", [tf.estimator.ModeKeys.TRAIN, tf.estimator.ModeKeys.EVAL])
def test_tensors_that_every_wafer_would_have_alike_are_refused(monkeypatch, mode):
    monkeypatch.setattr(cluster.job, "wafers", lambda: 2)
    with pytest.raises(DataError, match="must return a tf.data.Dataset"):
        cluster.shard_batches(tf.constant(1), mode, None)
    with pytest.raises(DataError, match="must return a tf.data.Dataset"):
        cluster.shard_batches(tf.constant(1), tf.estimator.ModeKeys.EVAL, 3, is_sharded=True)
