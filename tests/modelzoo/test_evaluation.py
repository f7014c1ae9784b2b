"""Evaluations count every record once, whatever the batches: all models and tasks, both sides."""

from __future__ import annotations

import dataclasses
import math
from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow.compat.v1")

from cerebras_tf.config import schema
from modelzoo.common.config import registry
from modelzoo.common.train.estimator import make_estimator
from modelzoo.common.train.run import eval_steps
from tests.modelzoo.made_records import TASKS, N, make_params, write_records


@pytest.fixture
def evaluate(tmp_path):
    """A function that evaluates a task's untrained model on its seven records."""

    def call(task, batch_size, use_cs, steps=None, **section):
        params = make_params(tmp_path, task, batch_size, **section)
        model, data = registry.load_model(params.model_name)
        checkpoint = tmp_path / "model.ckpt-0"
        if not (tmp_path / "model.ckpt-0.index").exists():
            write_records(tmp_path, task)
            with tf.Graph().as_default(), tf.Session() as session:
                tree = schema.as_tree(params)
                batch = tf.data.make_one_shot_iterator(data.INPUTS.blank(tree)).get_next()
                tf.set_random_seed(1)
                tf.train.get_or_create_global_step()
                model.model_fn(*batch, tf.estimator.ModeKeys.EVAL, tree)
                session.run(tf.global_variables_initializer())
                tf.train.Saver().save(session, str(tmp_path / "model.ckpt"), 0)
        estimator = make_estimator(model.model_fn, params, use_cs)
        steps = eval_steps(dataclasses.replace(params.runconfig, eval_steps=steps))
        return estimator.evaluate(
            data.INPUTS.eval, steps, checkpoint_path=str(checkpoint), use_cs=use_cs
        )

    return call


@pytest.mark.parametrize("task", TASKS)
def test_results_do_not_depend_on_the_batches(evaluate, task):
    whole = evaluate(task, N, use_cs=False)
    assert whole["loss"] > 0.1
    parts = evaluate(task, 3, use_cs=True)
    assert parts == {name: pytest.approx(value, rel=2e-5) for name, value in whole.items()}
    if task == "gpt3":
        assert parts["eval/lm_perplexity"] == pytest.approx(math.exp(parts["loss"]), rel=1e-5)


def test_more_steps_than_batches_are_one_pass(evaluate):
    once = evaluate("gpt3", 3, use_cs=False, steps=3)
    for steps in (None, 100):
        assert evaluate("gpt3", 3, use_cs=False, steps=steps, repeat=True) == once
    assert evaluate("gpt3", 3, use_cs=False, steps=2) != once


@pytest.mark.parametrize("steps", [None, 0, -1])
def test_no_number_of_steps_is_all(steps):
    assert eval_steps(SimpleNamespace(eval_steps=steps)) is None
