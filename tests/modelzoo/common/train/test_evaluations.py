"""Tests of evaluations.py: which checkpoint is the best, and when training ends early."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

pytestmark = pytest.mark.tf
pytest.importorskip("tensorflow")

from cerebras_tf.checkpoints.writer import write_checkpoint
from cerebras_tf.errors import DataError
from modelzoo.common.config.sections import EarlyStopping, KeepBest, RunConfigParams
from modelzoo.common.model_dir.checkpoint_files import all_checkpoints
from modelzoo.common.train.evaluations import Evaluations, best_step, last_improvement
from tests.messages import raises


def evaluations(folder, step, **rules):
    return Evaluations(RunConfigParams(model_dir=str(folder), **rules), step)


def add(seen, folder, step, **metrics):
    """Adds an evaluation of a checkpoint that lies in the folder."""
    make_checkpoint(folder, step)
    prefix = str(folder / f"model.ckpt-{step}")
    seen.export(None, "", prefix, {"global_step": step, **metrics}, False)


def make_checkpoint(folder, step):
    """Writes a whole checkpoint of that step."""
    write_checkpoint(str(folder / f"model.ckpt-{step}"), [{"global_step": np.int64(step)}])


def best(folder):
    return sorted(path.name for path in (folder / "best").glob("model.ckpt-*"))


def test_the_best_is_the_first_of_equals_and_never_nan():
    assert best_step({5: 2.0, 10: 1.0, 15: 1.0, 20: math.nan}, "min") == 10
    assert best_step({5: math.nan, 10: 1.0, 15: 3.0}, "max") == 15
    assert best_step({5: math.nan}, "min") is None


@pytest.mark.parametrize(
    ("values", "min_delta", "expected"),
    [
        ({5: 3.0, 10: 2.0, 15: 2.5, 20: 2.0}, 0.0, (10, 2)),
        ({5: 3.0, 10: 2.9, 15: 2.5}, 0.2, (15, 0)),
        ({5: 3.0, 10: 2.9, 15: 2.85}, 0.2, (5, 2)),
        ({}, 0.0, (None, 0)),
    ],
)
def test_a_gain_is_larger_than_min_delta(values, min_delta, expected):
    assert last_improvement(values, "min", min_delta) == expected


def test_the_best_checkpoint_is_put_aside_alone(tmp_path):
    seen = evaluations(tmp_path, 0, keep_best_checkpoint=KeepBest("accuracy", "max"))
    for step, accuracy in ((5, 0.5), (10, 0.7), (15, 0.6)):
        add(seen, tmp_path, step, accuracy=accuracy, loss=1.0)
    files = ["model.ckpt-10.data-00000-of-00001", "model.ckpt-10.index"]
    assert best(tmp_path) == files
    assert (tmp_path / "best" / files[1]).read_bytes() == (tmp_path / files[1]).read_bytes()
    assert 'model_checkpoint_path: "model.ckpt-10"' in (tmp_path / "best/checkpoint").read_text()


@pytest.mark.parametrize("model_dir", ["./out", ".", "a//b", "a/./b"])
def test_the_best_checkpoint_stays_however_its_folder_is_written(tmp_path, monkeypatch, model_dir):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / model_dir
    folder.mkdir(parents=True, exist_ok=True)
    seen = evaluations(model_dir, 0, keep_best_checkpoint=KeepBest("loss", "min"))
    for step, loss in ((5, 2.0), (10, 1.0)):
        make_checkpoint(folder, step)
        metrics = {"global_step": step, "loss": loss}
        seen.export(None, "", f"{model_dir}/model.ckpt-{step}", metrics, False)
    assert best(folder) == ["model.ckpt-10.data-00000-of-00001", "model.ckpt-10.index"]


def test_position_of_data_and_parameters_are_copied_with_the_best_checkpoint(tmp_path):
    for name in ("data_position.json", "trained_on.json", "params.yaml"):
        (tmp_path / name).write_text(f"of {name}")
    seen = evaluations(tmp_path, 0, keep_best_checkpoint=KeepBest())
    add(seen, tmp_path, 5, loss=1.0)
    for name in ("data_position.json", "trained_on.json", "params.yaml"):
        assert (tmp_path / "best" / name).read_text() == f"of {name}"


def test_another_rule_chooses_among_the_checkpoints_that_exist(tmp_path, caplog):
    seen = evaluations(tmp_path, 0)
    for step, loss in ((2, 4.0), (4, 1.0), (6, 3.0), (8, 2.0)):
        add(seen, tmp_path, step, loss=loss)
        for path in tmp_path.glob("model.ckpt-*"):
            path.unlink()
    for step in (6, 8):
        make_checkpoint(tmp_path, step)
    with caplog.at_level("WARNING"):
        evaluations(tmp_path, 8, keep_best_checkpoint=KeepBest()).keep_best()
    assert {name.split(".")[1] for name in best(tmp_path)} == {"ckpt-8"}
    assert (
        "the best evaluation so far, loss = 1 at step 4, has no checkpoint any more" in caplog.text
    )
    assert "best/ contains that of step 8" in caplog.text
    evaluations(tmp_path, 8, keep_best_checkpoint=KeepBest("loss", "max")).keep_best()
    assert {name.split(".")[1] for name in best(tmp_path)} == {"ckpt-6"}


@pytest.mark.parametrize("name", ["index", "data-00000-of-00001"])
@pytest.mark.parametrize("content", [None, b"", b"cut"])
def test_a_damaged_best_checkpoint_is_logged_and_replaced(tmp_path, caplog, name, content):
    rule = {"keep_best_checkpoint": KeepBest()}
    seen = evaluations(tmp_path, 0, **rule)
    for step, loss in ((2, 1.0), (4, 3.0), (6, 2.0)):
        add(seen, tmp_path, step, loss=loss)

    def damage():
        file = tmp_path / "best" / f"model.ckpt-2.{name}"
        file.unlink()  # a link: the one in model_dir stays whole
        if content is not None:
            file.write_bytes(content)

    damage()
    evaluations(tmp_path, 6, **rule).keep_best()
    assert "best/model.ckpt-2 is damaged and is copied again from" in caplog.text
    assert all_checkpoints(str(tmp_path / "best")) == [str(tmp_path / "best/model.ckpt-2")]
    assert len(best(tmp_path)) == 2
    damage()
    (tmp_path / "model.ckpt-2.data-00000-of-00001").write_bytes(b"")
    evaluations(tmp_path, 6, **rule).keep_best()
    assert (
        "loss = 1 at step 2, has no complete checkpoint any more: best/ contains that of step 6"
        in (caplog.text)
    )
    assert best(tmp_path) == [f"model.ckpt-6.{end}" for end in ("data-00000-of-00001", "index")]


@pytest.mark.parametrize(
    ("step", "end", "keys", "expected"),
    [
        (4, 9, {}, True),
        (5, 9, {}, False),
        (9, 9, {}, True),
        (2, 9, {}, False),
        (0, 9, {}, False),
        (4, 9, {"throttle_secs": 60}, False),
        (9, 9, {"throttle_secs": 60}, True),
        (4, 9, {"restore_partially": True}, False),
    ],
)
def test_an_evaluation_is_missing_where_an_uninterrupted_run_makes_one(
    tmp_path, step, end, keys, expected
):
    (tmp_path / "params.yaml").touch()
    add(evaluations(tmp_path, 0), tmp_path, 2, loss=1.0)
    again = evaluations(tmp_path, step, save_checkpoints_steps=2, **keys)
    assert again.lacks(step, end) is expected


def test_where_a_run_begins_no_evaluation_is_missing(tmp_path):
    """Neither of a checkpoint that was put into the folder, nor of the one that is resumed from."""
    folder, other = tmp_path / "mine", tmp_path / "other"
    for made in (folder, other):
        made.mkdir()
        make_checkpoint(made, 4)
    assert not evaluations(folder, 4, save_checkpoints_steps=2).lacks(4, 9)
    (folder / "params.yaml").touch()
    assert evaluations(folder, 4, save_checkpoints_steps=2).lacks(4, 9)
    resumed = {"resume_from": str(other / "model.ckpt-4"), "save_checkpoints_steps": 2}
    assert not evaluations(folder, 4, **resumed).lacks(4, 9)
    assert evaluations(folder, 6, **resumed).lacks(6, 9)


def test_patience_lasts_over_a_restart_and_forgets_what_was_taken_back(tmp_path):
    rule = EarlyStopping("loss", "min", patience=2)
    seen = evaluations(tmp_path, 0, early_stopping=rule)
    for step, loss in ((5, 1.0), (10, 2.0)):
        add(seen, tmp_path, step, loss=loss)
    assert seen.stopped is None
    again = evaluations(tmp_path, 10, early_stopping=rule)
    add(again, tmp_path, 15, loss=1.5)
    assert again.stopped.startswith("early stopping at step 15: loss has not improved since step 5")
    assert evaluations(tmp_path, 15, early_stopping=rule).stopped
    assert evaluations(tmp_path, 10, early_stopping=rule).stopped is None


@pytest.mark.parametrize("tree", [[1], {"2": {"loss": "abc"}}, {"2": {"loss": None}}])
def test_a_file_that_holds_something_else_is_named(tmp_path, tree):
    (tmp_path / "eval").mkdir()
    (tmp_path / "eval" / "evaluations.json").write_text(json.dumps(tree))
    with raises(DataError, "evaluations.json"):
        evaluations(tmp_path, 0)
