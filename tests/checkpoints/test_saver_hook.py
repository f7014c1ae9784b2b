"""When training writes checkpoints, and how often the saver reads the global step."""

from __future__ import annotations

import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

from cerebras_tf.checkpoints.saver import SaverHook
from cerebras_tf.errors import ConfigError
from cerebras_tf.tf_compat.internals import training_util
from tests.estimator import regression
from tests.messages import raises

pytestmark = pytest.mark.tf


def saved_steps(folder):
    return sorted(int(path.stem.split("-")[1]) for path in folder.glob("*.index"))


@pytest.mark.parametrize(
    ("begin", "a_run", "saved"),
    [
        (0, 1, [0, 5, 10, 12]),
        (0, 3, [0, 6, 12, 15, 21, 27, 30, 36]),
        (5, 1, [5, 10, 15, 17]),
        (7, 1, [7, 10, 15, 19]),  # resumed at 7: the first step of a run is saved too
        (9, 3, [9, 12, 15, 21, 27, 30, 36, 42, 45]),
        (15, 3, [15, 21, 27, 30, 36, 42, 45, 51]),
    ],
)
def test_checkpoints_are_written_at_the_steps_of_an_uninterrupted_run(
    begin, a_run, saved, tmp_path, monkeypatch
):
    runs, run = [], tf.compat.v1.Session.run
    monkeypatch.setattr(tf.compat.v1.Session, "run", lambda *a, **k: runs.append(0) or run(*a, **k))
    with tf.Graph().as_default():
        step = tf.compat.v1.train.get_or_create_global_step()
        # Adds to the step after the read that the hook fetches in the same run.
        train_op = training_util._increment_global_step(a_run)
        start = tf.compat.v1.assign(step, begin)
        scaffold = tf.compat.v1.train.Scaffold(
            saver=tf.compat.v1.train.Saver(max_to_keep=20),
            init_fn=lambda scaffold, session: session.run(start),
        )
        hook = SaverHook(str(tmp_path), save_steps=5, scaffold=scaffold)
        with tf.compat.v1.train.MonitoredSession(
            tf.compat.v1.train.ChiefSessionCreator(scaffold), [hook]
        ) as session:
            for _ in range(4):
                session.run(train_op)
            before = len(runs)
            session.run(train_op)
            if begin % 5 == 0:  # reads the step only when a checkpoint may be due
                assert len(runs) - before == (3 if begin + 5 * a_run in saved else 1)
            for _ in range(7):
                session.run(train_op)
    assert saved_steps(tmp_path) == saved
    tf.compat.v1.summary.FileWriterCache.clear()
    (events,) = map(str, tmp_path.glob("events.*"))
    graphs = [event.graph_def for event in tf.compat.v1.train.summary_iterator(events)]
    nodes = [len(tf.compat.v1.GraphDef.FromString(graph).node) for graph in graphs]
    assert sum(map(bool, nodes)) == 1


def test_a_hook_that_counts_seconds_has_the_timer_of_tensorflow(tmp_path):
    hook = SaverHook(str(tmp_path), save_secs=600)
    assert type(hook._timer) is tf.compat.v1.train.SecondOrStepTimer


def test_an_error_of_a_hook_at_the_end_is_raised_after_the_last_checkpoint(tmp_path):
    """The hook reads what a step assigns, alone; this is not known earlier."""

    def model(features, labels, mode, params):
        spec = regression.model_fn(features, labels, mode, params)
        kernel = tf.compat.v1.global_variables("layer/kernel")[0]
        halve = tf.group(kernel.assign(kernel * 0.5))
        with tf.control_dependencies([halve]):
            hook = tf.estimator.LoggingTensorHook([tf.identity(spec.loss)], at_end=True)
        return spec._replace(train_op=tf.group(spec.train_op, halve), training_hooks=[hook])

    with raises(ConfigError, "session.run", "train_op"):
        regression.build(tmp_path, model=model).train(regression.dataset, max_steps=3)
    assert saved_steps(tmp_path) == [0, 3]
