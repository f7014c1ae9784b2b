"""Checks where a run starts: from a checkpoint that is given, its own, or one that is damaged."""

from __future__ import annotations

import shutil

import pytest

pytest.importorskip("tensorflow")

from modelzoo.common.model_dir.checkpoint_files import copy_checkpoint, find_checkpoint
from tests.e2e.command_line import assert_same

pytestmark = pytest.mark.tf


@pytest.fixture
def folder(trained):
    return trained.folder / "out"


@pytest.mark.parametrize("end", ["", ".index", ".data-00000-of-00001", ".meta"])
def test_a_checkpoint_is_found_by_any_of_its_files(trained_once, end):
    prefix = str(trained_once[0].folder / "out" / "model.ckpt-5")
    assert find_checkpoint(prefix + end) == prefix
    assert find_checkpoint(str(trained_once[0].folder / "out")) == prefix[:-1] + "10"


def test_a_checkpoint_for_a_folder_that_has_begun_is_refused(trained, folder):
    before = trained.content()
    for flag in ("--checkpoint_path", "--resume_from"):
        result = trained("train", flag, str(folder / "model.ckpt-5"), "--max_steps", "12")
        assert result.exit_code == 2
        assert f"Leave {flag} out to go on from that, or give another folder" in result.error
        assert str(folder / "model.ckpt-10") in result.error
    assert trained.content() == before


def test_a_folder_whose_list_of_checkpoints_is_gone_is_not_trained_over(trained, folder):
    (folder / "checkpoint").unlink()
    before = trained.content()
    result = trained("train", "--max_steps", "12")
    assert result.exit_code == 2
    assert "Received: no such file. To go on from" in result.error
    assert trained.content() == before


def test_a_missing_checkpoint_is_told_with_its_option(trained):
    result = trained("train", "--resume_from", "nosuch", "--max_steps", "12", out="again")
    assert "or name another with --resume_from." in result.error


def test_a_run_that_is_resumed_ends_as_if_never_stopped(trained, folder):
    path = str(folder / "model.ckpt-5.index")
    for last in ("7", "10"):  # the second command goes on from what the first left
        result = trained("train", "--resume_from", path, "--max_steps", last, out="again")
        assert result.exit_code == 0, result.error
    assert trained.steps("again") == [5, 7, 10]
    assert_same(trained.variables("again"), trained.variables())


def test_a_run_that_was_killed_after_it_had_copied_its_checkpoint_goes_on(trained, folder):
    copy_checkpoint(str(folder / "model.ckpt-5"), str(trained.folder / "again"), "model.ckpt-5")
    refused = trained("train", "--resume_from", str(folder), "--max_steps", "10", out="again")
    assert refused.exit_code == 2  # the latest of that folder is another
    flags = ("--resume_from", str(folder / "model.ckpt-5"), "--max_steps", "10")
    result = trained("train", *flags, out="again")
    assert result.exit_code == 0, result.error
    assert_same(trained.variables("again"), trained.variables())


def test_a_damaged_position_of_the_data_is_named_where_the_user_has_it(trained, folder):
    (folder / "data_position.json").write_text("{")
    result = trained("train", "--resume_from", str(folder), "--max_steps", "12", out="again")
    assert result.exit_code == 2
    assert f"{folder}/data_position.json: must hold how many batches were read" in result.error
    assert "again" not in result.error and not trained.content("again")


def test_a_refused_run_leaves_no_copy_behind(trained, folder):
    trained.change(("hidden_size: 32", "hidden_size: 64"))
    for last, exit_code in (("12", 2), ("10", 0)):  # of another model; with nothing to train
        flags = ("--resume_from", str(folder), "--max_steps", last)
        result = trained("train", *flags, out="again")
        assert result.exit_code == exit_code
        assert (str(folder / "model.ckpt-10") in result.error) == bool(exit_code)
        assert not trained.content("again")


@pytest.mark.parametrize(
    ("mode", "options", "told"),
    [
        ("eval", ("--max_steps", "3"), "--max_steps"),
        ("predict", ("--save_checkpoints_steps", "3"), "--save_checkpoints_steps"),
        (
            "eval_all",
            ("--resume_from", "x"),
            "--resume_from: applies to train, train_and_eval only",
        ),
        ("eval_all", ("--checkpoint_path", "x"), "--checkpoint_path: applies to train"),
        ("train", ("--eval_steps", "3"), "-m train_and_eval gives"),
        ("predict", ("--eval_steps", "3"), "runconfig.predict_steps gives"),
    ],
)
def test_options_that_a_mode_lacks_are_refused(command_line, mode, options, told):
    result = command_line(mode, *options)
    assert result.exit_code == 2
    assert told in result.error


def test_keys_of_the_cluster_are_told_and_the_strategy_is_the_launchers(command_line):
    command_line.change(("    max_steps: 10", "    max_steps: 10\n    num_wgt_servers: 9"))
    result = command_line("train", "--validate_only")
    assert result.exit_code == 0
    told = "runconfig.num_wgt_servers is of the real cluster: it changes nothing here"
    assert told in result.lines
    strategy = "    max_steps: 10\n    execution_strategy: pipeline"
    command_line.change(("    max_steps: 10", strategy))
    result = command_line("train", "--validate_only")
    assert result.exit_code == 2
    assert "must be the launcher's, weight_streaming. Received: pipeline." in result.error
    assert "CEREBRAS_EXECUTION_MODE=pipeline" in result.error


def test_steps_of_training_are_refused_where_none_are_made(trained):
    for mode, instead in (("eval", "--eval_steps"), ("predict", "runconfig.predict_steps")):
        result = trained(mode, "--steps", "3")
        assert result.exit_code == 2
        assert f"Received: 3, with mode {mode}. Leave it out; {instead}" in result.error


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("content", [b"", b"\x00\xffgarbage", b"model: 5"])
def test_a_list_of_checkpoints_that_is_none_is_refused(trained, folder, mode, content):
    (folder / "checkpoint").write_bytes(content)
    before = trained.content()
    result = trained(mode)
    assert result.exit_code == 2
    assert f"{folder}/checkpoint: must name the latest checkpoint of its folder" in result.error
    assert 'model_checkpoint_path: "model.ckpt-10"' in result.error
    assert "Traceback" not in result.error
    assert trained.content() == before


def test_a_damaged_index_is_told_with_the_checkpoint_before_it(trained, folder):
    (folder / "model.ckpt-10.index").write_bytes(b"nothing")
    result = trained("eval")
    assert result.exit_code == 2
    assert f"take the one before: --checkpoint_path {folder}/model.ckpt-5" in result.error


@pytest.mark.parametrize("mode", ["train", "eval", "predict"])
def test_a_missing_shard_is_named_and_the_checkpoint_before_offered(trained, folder, mode):
    (shard,) = folder.glob("model.ckpt-10.data*")
    shard.unlink()
    result = trained(mode, *(("--max_steps", "12") if mode == "train" else ()))
    assert result.exit_code == 2
    assert f"no {shard}." in result.error
    assert f"--checkpoint_path {folder}/model.ckpt-5" in result.error
    if mode == "eval":
        assert trained("eval", "--checkpoint_path", f"{folder}/model.ckpt-5").exit_code == 0


RULES = """\
    keep_best_checkpoint:
        metric: eval/accuracy
        mode: max
    early_stopping:
        metric: loss
        patience: 1
        min_delta: 100
"""


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("metric: loss", "metric: loos"), "early_stopping.metric: must be one of eval/accuracy, "),
        (("data_dir: texts\npredict", "data_dir: nowhere\npredict"), "nowhere"),
    ],
)
def test_what_ends_the_first_evaluation_is_told_before_the_first_step(command_line, change, says):
    last_line = "    tf_random_seed: 1\n"
    command_line.change((last_line, last_line + RULES), change)
    result = command_line("train_and_eval")
    assert result.exit_code == 2
    assert says in result.error
    assert not list(command_line.folder.glob("out/model.ckpt*"))


def test_evaluations_keep_the_best_and_end_training(command_line):
    last_line = "    tf_random_seed: 1\n"
    command_line.change((last_line, last_line + RULES))
    result = command_line("train_and_eval", "--max_steps", "30")
    assert result.exit_code == 0, result.error
    assert command_line.steps() == [0, 5, 10]
    assert any(line.startswith("early stopping at step 10: loss has") for line in result.lines)
    assert (
        command_line("eval", "--checkpoint_path", str(command_line.folder / "out/best")).exit_code
        == 0
    )
    again = command_line("train_and_eval", "--max_steps", "30")
    assert again.exit_code == 0
    assert "early stopping at step 10" in again.lines[-1]
    assert "Raise runconfig.early_stopping.patience, or" in again.lines[-1]
    assert command_line.steps() == [0, 5, 10]
    shutil.rmtree(command_line.folder / "out")
    alone = command_line("train")
    assert alone.exit_code == 2
    assert "Run with -m train_and_eval" in alone.error
