"""Logs besides event files receive what is written to these, also after a resume."""

from __future__ import annotations

import csv
import sys
from types import SimpleNamespace

import pytest
import tensorflow as tf

from cerebras_tf.console.loggers import METRICS, MetricsFile
from cerebras_tf.errors import ConfigError
from cerebras_tf.estimator.console_hooks import logging_scalars
from tests.messages import names


def rows(folder):
    with open(folder / METRICS, newline="") as file:
        return [
            {key: float(value) for key, value in row.items() if value}
            for row in csv.DictReader(file)
        ]


def write(folder, *steps, restart=None):
    with tf.Graph().as_default():
        writer = tf.compat.v1.summary.FileWriterCache.get(str(folder))
    if restart is not None:
        start = tf.compat.v1.SessionLog(status=tf.compat.v1.SessionLog.START)
        writer.add_session_log(start, restart)
    for step, values in steps:
        summary = tf.compat.v1.Summary()
        for tag, value in values.items():
            summary.value.add(tag=tag, simple_value=value)
        writer.add_summary(summary.SerializeToString(), step)


def csv_log(folder):
    return logging_scalars(["tensorboard", "csv"], str(folder), str(folder), "train", {})


def test_a_row_of_the_csv_file_is_a_step(tmp_path):
    with csv_log(tmp_path):
        write(tmp_path, (1, {"loss": 4.0}), (2, {"loss": 2.0}), (2, {"rate": 0.5}))
        write(tmp_path, (3, {"loss": 1.0}))
    found = [{"step": 1, "loss": 4}, {"step": 2, "loss": 2, "rate": 0.5}, {"step": 3, "loss": 1}]
    assert rows(tmp_path) == found
    write(tmp_path, (4, {"loss": 0.5}))
    assert rows(tmp_path) == found  # nothing is logged afterwards


def test_a_resumed_run_drops_the_rows_of_lost_steps(tmp_path):
    with csv_log(tmp_path):
        write(tmp_path, *((step, {"loss": step}) for step in range(1, 6)))
    with csv_log(tmp_path):
        write(tmp_path, (4, {"loss": 40.0}), restart=4)
    assert [row["loss"] for row in rows(tmp_path)] == [1, 2, 3, 40]


def test_a_run_that_writes_nothing_makes_no_file(tmp_path):
    get = tf.compat.v1.summary.FileWriterCache.get
    with csv_log(tmp_path), csv_log(tmp_path / "eval"):
        pass
    assert not list(tmp_path.iterdir())
    assert tf.compat.v1.summary.FileWriterCache.get is get


def test_an_evaluation_of_the_same_step_replaces_its_row(tmp_path):
    for value in (1.0, 2.0):
        log = MetricsFile(tmp_path / METRICS)
        log.log(2, {"loss": value})
        log.log(7, {"loss": 3.0})
        log.close()
    assert [(row["step"], row["loss"]) for row in rows(tmp_path)] == [(2, 2), (7, 3)]


def test_a_file_of_other_rows_is_refused(tmp_path):
    (tmp_path / METRICS).write_text("name,loss\na,1\n")
    with pytest.raises(ConfigError) as error, csv_log(tmp_path):
        write(tmp_path, (1, {"loss": 1.0}))
    assert names(error.value, tmp_path / METRICS, "step")


@pytest.fixture
def wandb(monkeypatch):
    """A package that keeps what is logged."""
    fake = SimpleNamespace(run=None, logged=[], started=[], define_metric=lambda *_, **__: None)

    def init(**given):
        fake.started.append(given)
        fake.run = SimpleNamespace(
            log=fake.logged.append, finish=lambda: setattr(fake, "run", None)
        )

    fake.init = init
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


def test_training_and_its_evaluation_are_one_run_that_is_resumed(tmp_path, wandb):
    def log(folder, prefix):
        return logging_scalars(["wandb"], str(tmp_path), str(folder), prefix, {"size": 3})

    for step in (1, 2):
        with log(tmp_path, "train"):
            write(tmp_path, (step, {"loss": 4.0, "train/lr": 0.5}))
            with log(tmp_path / "eval", "eval"):
                write(tmp_path / "eval", (step, {"loss": 5.0, "eval/accuracy": 1.0}))
        assert wandb.run is None
    first, second = wandb.started
    assert first["id"] == second["id"] and first["config"] == {"size": 3}
    assert wandb.logged[:2] == [
        {"train/loss": 4.0, "train/lr": 0.5, "global_step": 1},
        {"eval/loss": 5.0, "eval/accuracy": 1.0, "global_step": 1},
    ]


def test_wandb_must_be_installed_to_train_and_evaluate(tmp_path, monkeypatch):
    from cerebras_tf import CerebrasEstimator, CSRunConfig

    monkeypatch.setitem(sys.modules, "wandb", None)
    config = CSRunConfig(model_dir=str(tmp_path / "out"), loggers=["wandb"])
    made = CerebrasEstimator(lambda features: None, config=config)  # may still predict
    for call in (made.train, made.evaluate, made.compile):
        with pytest.raises(ConfigError) as error:
            call(lambda: None)
        assert names(error.value, "loggers", "pip install wandb")
    with pytest.raises(ConfigError) as error:
        CSRunConfig(loggers=["mlflow"])
    assert names(error.value, "loggers", "mlflow", "csv")
