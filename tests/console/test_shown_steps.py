"""Checks which steps are shown, and that their summaries are those of the same steps."""

from __future__ import annotations

import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

from cerebras_tf.console.shown_steps import ShownSteps
from cerebras_tf.estimator.console_hooks import SummaryHook

pytestmark = pytest.mark.tf


@pytest.mark.parametrize(
    "start,given,expected",
    [
        (0, {"last_step": 12}, [1, 5, 10, 12]),
        (7, {"steps": 6}, [8, 10, 13]),
        (5, {}, [6, 10, 15, 20]),
    ],
)
def test_the_first_step_multiples_and_the_last_are_shown(start, given, expected):
    shown = ShownSteps(5, **given)
    shown.begin(start)
    last = shown.last or 20
    assert [step for step in range(last + 1) if step in shown] == expected


def written_steps(folder, runs_a_step, runs):
    """The steps of the summaries of a graph whose global step rises after some runs each."""
    with tf.Graph().as_default():
        step = tf.compat.v1.train.get_or_create_global_step()
        run = tf.compat.v1.get_variable("run", initializer=0, trainable=False)
        tf.compat.v1.summary.scalar("run", run)
        counted = tf.compat.v1.assign_add(run, 1)
        with tf.control_dependencies([counted]):
            full = tf.equal(tf.math.floormod(counted, runs_a_step), 0)
            train_op = tf.compat.v1.assign_add(step, tf.cast(full, tf.int64))
        scaffold = tf.compat.v1.train.Scaffold()
        hook = SummaryHook(scaffold, str(folder), ShownSteps(2, last_step=5))
        creator = tf.compat.v1.train.ChiefSessionCreator(scaffold)
        with tf.compat.v1.train.MonitoredSession(creator, [hook]) as session:
            for _ in range(runs):
                session.run(train_op)
    events = [
        event
        for path in folder.glob("events.*")
        for event in tf.compat.v1.train.summary_iterator(str(path))
    ]
    return [event.step for event in events if event.HasField("summary")]


@pytest.mark.parametrize("runs_a_step", [1, 3])
def test_summaries_are_written_once_for_each_step_that_is_shown(tmp_path, runs_a_step):
    assert written_steps(tmp_path, runs_a_step, 5 * runs_a_step) == [1, 2, 4, 5]
