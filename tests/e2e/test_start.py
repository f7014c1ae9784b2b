"""Checks where a run starts: from a checkpoint that is given, or from its own."""

from __future__ import annotations

import shutil

import pytest

pytest.importorskip("tensorflow")

from modelzoo.common.model_dir.checkpoint_files import copy_checkpoint
from tests.messages import names
from tests.reading import assert_same

pytestmark = pytest.mark.tf
LAST_LINE = "    tf_random_seed: 1\n"
RULES = """\
    keep_best_checkpoint:
        metric: eval/accuracy
        mode: max
    early_stopping:
        metric: loss
        patience: 1
        min_delta: 100
"""


@pytest.fixture
def folder(trained):
    return trained.folder / "out"


@pytest.mark.parametrize("flag", ["--checkpoint_path", "--resume_from", None])
def test_a_folder_with_checkpoints_is_not_trained_from_another(trained, folder, flag):
    """Nor from its first step, where its list of checkpoints is gone."""
    if flag is None:
        (folder / "checkpoint").unlink()
    before = trained.content()
    given = [flag, str(folder / "model.ckpt-5")] if flag else []
    result = trained("train", *given, "--max_steps", "12")
    assert result.exit_code == 2 and names(result.error, flag or "no such file", folder)
    assert trained.content() == before


def test_a_run_that_is_resumed_ends_as_if_never_stopped(trained, folder):
    path = str(folder / "model.ckpt-5.index")
    for last in ("7", "10"):  # the second command continues from what the first left
        result = trained("train", "--resume_from", path, "--max_steps", last, out="again")
        assert result.exit_code == 0, result.error
    assert trained.steps("again") == [5, 7, 10]
    assert_same(trained.variables("again"), trained.variables())


def test_a_run_that_was_killed_after_it_had_copied_its_checkpoint_continues(trained, folder):
    copy_checkpoint(str(folder / "model.ckpt-5"), str(trained.folder / "again"), "model.ckpt-5")
    refused = trained("train", "--resume_from", str(folder), "--max_steps", "10", out="again")
    assert refused.exit_code == 2  # the latest of that folder is another
    flags = ("--resume_from", str(folder / "model.ckpt-5"), "--max_steps", "10")
    result = trained("train", *flags, out="again")
    assert result.exit_code == 0, result.error
    assert_same(trained.variables("again"), trained.variables())


@pytest.mark.parametrize(("last", "exit_code"), [("12", 2), ("10", 0)], ids=["refused", "done"])
def test_a_run_that_does_not_train_leaves_no_copy(trained, folder, last, exit_code):
    trained.change(("hidden_size: 32", "hidden_size: 64"))
    flags = ("--resume_from", str(folder), "--max_steps", last)
    result = trained("train", *flags, out="again")
    assert result.exit_code == exit_code
    assert (str(folder / "model.ckpt-10") in result.error) == bool(exit_code)
    assert not trained.content("again")


@pytest.mark.parametrize(
    ("mode", "options", "instead"),
    [
        ("eval", ("--max_steps", "3"), "--max_steps"),
        ("eval", ("--steps", "3"), "--eval_steps"),
        ("predict", ("--save_checkpoints_steps", "3"), "--save_checkpoints_steps"),
        ("eval_all", ("--resume_from", "x"), "train_and_eval"),
        ("eval_all", ("--checkpoint_path", "x"), "train"),
        ("train", ("--eval_steps", "3"), "-m train_and_eval"),
        ("predict", ("--eval_steps", "3"), "runconfig.predict_steps"),
    ],
)
def test_options_that_a_mode_lacks_are_refused(command_line, mode, options, instead):
    result = command_line(mode, *options)
    assert result.exit_code == 2 and names(result.error, instead, options[0], options[1])


def test_keys_of_the_cluster_are_logged_and_another_strategy_is_refused(command_line):
    command_line.change(("    max_steps: 10", "    max_steps: 10\n    num_wgt_servers: 9"))
    result = command_line("train", "--validate_only")
    assert result.exit_code == 0 and names(result.lines, "runconfig.num_wgt_servers")
    strategy = "    max_steps: 10\n    execution_strategy: pipeline"
    command_line.change(("    max_steps: 10", strategy))
    result = command_line("train", "--validate_only")
    assert result.exit_code == 2
    assert names(result.error, "pipeline", "CEREBRAS_EXECUTION_MODE=pipeline")


def test_a_metric_that_no_evaluation_has_is_refused_before_the_first_step(command_line):
    command_line.change((LAST_LINE, LAST_LINE + RULES), ("metric: loss", "metric: loos"))
    result = command_line("train_and_eval")
    assert result.exit_code == 2 and names(result.error, "early_stopping.metric", "eval/accuracy")
    assert not list(command_line.folder.glob("out/model.ckpt*"))


def test_evaluations_keep_the_best_and_end_training(command_line):
    command_line.change((LAST_LINE, LAST_LINE + RULES))
    result = command_line("train_and_eval", "--max_steps", "30")
    assert result.exit_code == 0, result.error
    assert command_line.steps() == [0, 5, 10]
    assert names(result.lines, "early stopping at step 10")
    best = str(command_line.folder / "out/best")
    assert command_line("eval", "--checkpoint_path", best).exit_code == 0
    again = command_line("train_and_eval", "--max_steps", "30")
    assert again.exit_code == 0 and names(again.lines[-1], "step 10", "early_stopping.patience")
    assert command_line.steps() == [0, 5, 10]
    shutil.rmtree(command_line.folder / "out")
    alone = command_line("train")
    assert alone.exit_code == 2 and names(alone.error, "-m train_and_eval")
