"""What was compiled once is not compiled again, and nothing else is taken for it."""

from __future__ import annotations

import re

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

from cerebras_tf.estimator.estimator import CerebrasEstimator
from cerebras_tf.estimator.run_config import CSRunConfig
from cerebras_tf.frontend.program_cache import ProgramCache
from cerebras_tf.frontend.program_source import CompilingSource
from cerebras_tf.ir.program_file import load_program
from tests.estimator.regression import build, variables_of

pytestmark = pytest.mark.tf
v1 = tf.compat.v1
ROWS, WIDTH = 8, 3


def model(rate=0.1, dropout=0.0, seed=None, width=16):
    """A model_fn of two layers with a conditional step, trained by Adam."""

    def model_fn(features, labels, mode, params):
        with v1.variable_scope("model"):
            start = v1.random_normal_initializer(seed=5)
            hidden = v1.layers.dense(features, width, tf.nn.gelu, kernel_initializer=start)
            training = mode == tf.estimator.ModeKeys.TRAIN
            hidden = v1.layers.dropout(hidden, dropout, seed=seed, training=training)
            scores = v1.layers.dense(hidden, 1, kernel_initializer=start)[:, 0]
        if mode == tf.estimator.ModeKeys.PREDICT:
            return tf.estimator.EstimatorSpec(mode, predictions={"score": scores})
        loss = tf.reduce_mean(tf.square(scores - labels), name="cost")
        loss = tf.cond(loss > 1e3, lambda: loss * 0.5, lambda: loss * 1.0)
        metrics = {"error": v1.metrics.mean(tf.abs(scores - labels))}
        step = v1.train.get_global_step()
        train_op = v1.train.AdamOptimizer(rate).minimize(loss, step)
        return tf.estimator.EstimatorSpec(
            mode, loss=loss, train_op=train_op, eval_metric_ops=metrics
        )

    return model_fn


def batches(rows=ROWS):
    def input_fn():
        random = np.random.default_rng(3)
        features = random.standard_normal((6, rows, WIDTH)).astype(np.float32)
        return tf.data.Dataset.from_tensor_slices((features, features.sum(-1)))

    return input_fn


@pytest.fixture
def captures(monkeypatch):
    """Counts the captures that are made."""
    made = []
    original = CompilingSource._capture

    def counted(self, *args, **given):
        made.append(self)
        return original(self, *args, **given)

    monkeypatch.setattr(CompilingSource, "_capture", counted)
    return made


def programs(folder):
    return sorted(path.name for path in folder.rglob("program_*.zip"))


def test_training_evaluation_and_prediction_find_what_was_compiled(tmp_path, captures):
    keys = tf.estimator.ModeKeys
    plain = build(tmp_path / "plain", model=model())
    plain.train(batches())
    expected = plain.evaluate(batches())["error"]
    scores = [row["score"] for row in plain.predict(batches())]
    made = build(tmp_path / "made", model=model())
    for mode in (keys.TRAIN, keys.EVAL, keys.PREDICT):
        made.compile(batches(), mode=mode)
    names = [re.sub(r"_[0-9a-f]{12}\.zip$", "", name) for name in programs(tmp_path / "made")]
    assert names == ["program_eval", "program_predict", "program_train"]
    captures.clear()
    made.train(batches())
    assert made.evaluate(batches())["error"] == expected
    np.testing.assert_array_equal([row["score"] for row in made.predict(batches())], scores)
    assert captures == []
    ours, theirs = variables_of(tmp_path / "made"), variables_of(tmp_path / "plain")
    for name, content in theirs.items():
        np.testing.assert_array_equal(ours[name], content, err_msg=name)


def test_a_compiled_prediction_has_all_that_it_predicts(tmp_path, captures):
    def wide(features, labels, mode, params):
        scores = v1.layers.dense(features, 5000, name="only")
        return tf.estimator.EstimatorSpec(mode, predictions={"scores": scores})

    folder = build(tmp_path, model=model()).model_dir
    with tf.Graph().as_default(), v1.Session() as session:
        v1.train.get_or_create_global_step()
        wide(tf.zeros([ROWS, WIDTH]), None, tf.estimator.ModeKeys.PREDICT, {})
        session.run(v1.global_variables_initializer())
        v1.train.Saver().save(session, f"{folder}/model.ckpt", 0)
    made = build(tmp_path, model=wide)
    program = made.compile(batches(), mode=tf.estimator.ModeKeys.PREDICT)
    assert set(program.variables) == {"only/kernel", "only/bias"}
    captures.clear()
    assert len(list(made.predict(batches()))) == 6 * ROWS
    assert captures == []


@pytest.mark.parametrize(
    "changed", [{"rate": 0.2}, {"dropout": 0.5}, {"dropout": 0.1, "seed": 4}, {"width": 17}]
)
def test_another_model_is_compiled(tmp_path, captures, changed):
    build(tmp_path, model=model(dropout=0.1)).compile(batches())
    captures.clear()
    build(tmp_path, model=model(**{"dropout": 0.1, **changed})).train(batches(), max_steps=1)
    assert len(captures) == 1


def test_another_batch_is_compiled(tmp_path, captures):
    build(tmp_path, model=model()).compile(batches())
    captures.clear()
    build(tmp_path, model=model()).train(batches(ROWS + 1), max_steps=1)
    assert len(captures) == 1


def test_a_tensor_that_nobody_asked_for_before_is_compiled(tmp_path, captures):
    made = build(tmp_path, model=model())
    made.compile(batches())
    captures.clear()
    hook = tf.estimator.LoggingTensorHook(["model/dense/BiasAdd:0"], every_n_iter=1)
    made.train(batches(), hooks=[hook], max_steps=2)
    assert captures


def unseeded(folder):
    """An estimator whose graph has no seed, of a model with dropout."""
    config = CSRunConfig(save_summary_steps=None, log_step_count_steps=None)
    return CerebrasEstimator(model(dropout=0.5), str(folder), config=config)


def first_seeds(program):
    """First seeds of the random ops of a program."""
    contents = program.constants.values()
    return {int(c[0]) for c in contents if c.dtype == np.int64 and c.shape == (2,)}


def test_models_without_seeds_have_one_program_that_draws_anew(tmp_path, captures, monkeypatch):
    for name in ("one", "two"):
        unseeded(tmp_path / name).compile(batches())
    first, second = (programs(tmp_path / name) for name in ("one", "two"))
    assert first == second and len(first) == 1
    saved = load_program(next((tmp_path / "one").rglob("program_*.zip")))
    found, find = [], ProgramCache.find

    def kept(self, *args):
        found.append(find(self, *args))
        return found[-1]

    monkeypatch.setattr(ProgramCache, "find", kept)
    captures.clear()
    for steps in (1, 2):
        unseeded(tmp_path / "one").train(batches(), max_steps=steps)
    assert captures == []
    seeds = [first_seeds(program) for program in (saved, *(each[0] for each in found))]
    assert all(len(each) == 1 for each in seeds) and len(set.union(*seeds)) == 3


def test_a_damaged_file_is_compiled_again(tmp_path, captures):
    build(tmp_path, model=model()).compile(batches())
    (path,) = (tmp_path / "compiled").glob("program_*.zip")
    path.write_bytes(path.read_bytes()[:100])
    captures.clear()
    build(tmp_path, model=model()).train(batches(), max_steps=1)
    assert len(captures) == 1


def test_memory_that_is_another_now_decides_anew(tmp_path, captures):
    build(tmp_path, model=model(), wafer_memory_gb=1.0).compile(batches())
    captures.clear()
    build(tmp_path, model=model(), wafer_memory_gb=2.0).train(batches(), max_steps=1)
    assert captures == []
