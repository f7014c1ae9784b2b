"""Checks every mode of the command line on the wafer: what it computes, writes and prints."""

from __future__ import annotations

import json
import math
import re
import shutil

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

from cerebras_tf.ir.program_file import load_program
from cerebras_tf.kernels import scratch
from tests.e2e.command_line import WINDOWS
from tests.messages import names
from tests.reading import all_scalars, assert_same, scalars_of

pytestmark = pytest.mark.tf
LOSS = re.compile(
    r"^global_step = (\d+), loss = (\S+), rate = \S+ steps/sec, \d+ tokens/sec(?:, [\d:]+ left)?$"
)
SECONDS = r"\d+\.\d s"


def losses(result):
    """Loss by step of the lines printed."""
    found = map(LOSS.match, result.lines)
    return {int(match.group(1)): float(match.group(2)) for match in found if match}


def scalars(folder, tag):
    """Value by step of a scalar in a folder's events."""
    return {step: value for (step, name), value in scalars_of(folder).items() if name == tag}


def metrics(result, step):
    """Metrics by name, as an evaluation printed them."""
    start = f"Saving dict for global step {step}: "
    (line,) = [line for line in result.lines if line.startswith(start)]
    return {key: float(value) for key, value in re.findall(r"(\S+) = ([^,\s]+)", line)}


def test_train_prints_only_phases_steps_and_checkpoints(trained_once):
    command_line, result = trained_once
    saved = re.escape(str(command_line.folder / "out" / "model.ckpt"))
    expected = [
        rf"Saving checkpoints for 0 into {saved}\.",
        r"[\d,]+ parameters, \d+ layers, [\d.]+ MB of memory \([^)]*\) of \S+ GB available, "
        "64 tokens per batch",
        r"training from step 0 to 10 \.\.\.",
        LOSS.pattern,
        rf"Saving checkpoints for 5 into {saved}\.",
        LOSS.pattern,
        rf"Saving checkpoints for 10 into {saved}\.",
        LOSS.pattern,
        f"training: 10 steps in {SECONDS}",
        r"Loss for final step: \S+\.",
    ]
    # On a busy machine phases take long, and are logged.
    phases = "building the graph|capturing|compiling .* layers|sending weights|first step, .*"
    slow = re.compile(rf"({phases})( \.\.\.|: {SECONDS})$")
    lines = [line for line in result.lines if not slow.match(line)]
    assert result.exit_code == 0
    assert len(lines) == len(expected), lines
    for line, pattern in zip(lines, expected):
        assert re.fullmatch(pattern.strip("^$"), line), line
    assert len(set(result.lines)) == len(result.lines)


def test_the_same_command_continues_and_ends_as_if_never_stopped(
    trained_once, command_line, monkeypatch
):
    monkeypatch.chdir(command_line.folder)  # a relative folder
    assert command_line("train", "-o", "out", "--max_steps", "5").exit_code == 0
    assert command_line.steps() == [0, 5]
    result = command_line("train", "-o", "out")
    assert result.exit_code == 0
    assert any(line.startswith("training from step 5 to 10") for line in result.lines)
    assert command_line.steps() == [0, 5, 10]
    assert_same(command_line.variables(), trained_once[0].variables())


def test_a_finished_run_trains_no_further_and_steps_adds_some(trained):
    before = trained.content()
    result = trained("train")
    assert result.exit_code == 0
    assert "nothing to train" in result.lines[0]
    assert trained.content() == before
    assert trained("train", "--steps", "3").exit_code == 0
    assert trained.steps()[-1] == 13


def test_a_warm_start_takes_the_weights_and_counts_from_zero(trained):
    path = str(trained.folder / "out" / "model.ckpt-10")
    result = trained("train", "--checkpoint_path", path, "--max_steps", "1", out="warm")
    assert result.exit_code == 0
    assert trained.steps("warm") == [0, 1]
    first = tf.train.load_checkpoint(str(trained.folder / "warm" / "model.ckpt-0"))
    weights = trained.variables()
    name = "input_embedding/embedding_weights"
    np.testing.assert_array_equal(first.get_tensor(name), weights[name])
    assert first.get_tensor("global_step") == 0
    shutil.rmtree(trained.folder / "out")
    again = trained("train", "--checkpoint_path", path, "--max_steps", "2", out="warm")
    assert again.exit_code == 0
    assert trained.steps("warm") == [0, 1, 2]


def test_eval_all_evaluates_every_checkpoint(trained):
    result = trained("eval_all")
    assert result.exit_code == 0
    values = [metrics(result, step)["loss"] for step in (0, 5, 10)]
    assert values[0] > values[1] > values[2]
    assert list(scalars(trained.folder / "out" / "eval", "loss")) == [0, 5, 10]


def test_train_and_eval_evaluates_while_it_trains(trained_once, command_line):
    result = command_line("train_and_eval")
    assert result.exit_code == 0
    assert metrics(result, 5)["loss"] > metrics(result, 10)["loss"]
    assert losses(result) == losses(trained_once[1])
    assert_same(command_line.variables(), trained_once[0].variables())


def test_predict_writes_every_example_as_the_host_does(trained):
    trained.change(("    eval_steps: 2", "    predict_steps: 1000"))
    assert WINDOWS % 4
    for place in ("cs", "tf"):
        flags = [] if place == "cs" else ["--device", "/cpu:0"]
        result = trained("predict", *flags)
        assert result.exit_code == 0
        assert result.lines[-1].startswith(f"wrote {WINDOWS} predictions to ")
    stem = trained.folder / "out" / "predict" / "predictions"
    wafer, host = np.load(f"{stem}_cs_0.npz"), np.load(f"{stem}_tf_0.npz")
    assert wafer["next_token_ids"].shape == (WINDOWS, 16)
    np.testing.assert_array_equal(wafer["next_token_ids"], host["next_token_ids"])
    name = "next_token_log_probs"
    np.testing.assert_allclose(wafer[name], host[name], rtol=1e-4, atol=1e-5)
    with open(f"{stem}_cs_0.jsonl") as file:
        rows = [json.loads(line)["next_token_ids"] for line in file]
    assert rows == wafer["next_token_ids"].tolist()


@pytest.mark.parametrize("mode", ["train", "eval", "predict"])
def test_validate_only_checks_and_writes_nothing(trained, mode):
    before, out = trained.content(), "new" if mode == "train" else "out"
    result = trained(mode, "--validate_only", out=out)
    assert result.exit_code == 0
    size = r"[\d,]+ parameters, \d+ layers, [\d.]+ MB of memory \(.*\) of [\d.]+ GB available"
    assert re.fullmatch(size, result.lines[-2])
    assert result.lines[-1].startswith("prediction for a CS-2 ")
    assert trained.content() == before and not (trained.folder / "new").exists()


def test_compile_only_writes_a_program_for_each_mode(command_line):
    result = command_line("train_and_eval", "--compile_only")
    assert result.exit_code == 0
    flops = []
    for name in ("train", "eval"):
        folder = command_line.folder / "out" / "compiled"
        (path,) = folder.glob(f"program_{name}_*.zip")
        flops.append(load_program(path).flops)
        words = r"[\d.]+ million floating-point operations per step, .* at the measured .*"
        (line,) = [line for line in result.lines if line.endswith(f"; program in {path}")]
        assert re.match(words, line)
    assert flops[0] > 2 * flops[1]
    assert not command_line.steps()


def test_pipelined_mode_computes_the_same(trained_once, command_line, monkeypatch):
    monkeypatch.setenv("CEREBRAS_EXECUTION_MODE", "pipeline")
    assert command_line("train").exit_code == 0
    assert_same(command_line.variables(), trained_once[0].variables())


def test_several_wafers_are_one_that_accumulates_their_batches(command_line):
    """As the host accumulates, and as one batch; rates count both batches, after step one."""
    short = (
        ("save_summary_steps: 5", "save_summary_steps: 2"),
        ("    max_steps: 10", "    max_steps: 4"),
    )
    command_line.change(*short)
    several = command_line("train", "--num_csx", "2", out="several")
    assert names(several.lines, "num_csx 2: one wafer", "batches of 4", "8 examples per step")
    check_scalars_once_a_step(command_line.folder / "several")
    accumulated = ("learning_rate: 1e-2", "learning_rate: 1e-2\n    grad_accum_steps: 2")
    command_line.change(*short, accumulated)
    parts, host = (
        command_line("train", *flags, out=out)
        for out, flags in (("parts", ()), ("host", ("--device", "/cpu:0")))
    )
    assert several.exit_code == parts.exit_code == host.exit_code == 0
    assert losses(several) == losses(parts) == pytest.approx(losses(host), rel=1e-5)
    found, expected = (command_line.variables(out) for out in ("several", "parts"))
    assert found["global_step"] == 4
    assert found.keys() == expected.keys()
    assert all((found[name] == value).all() for name, value in expected.items())
    command_line.change(*short, ("batch_size: 4", "batch_size: 8"))
    assert command_line("train", out="one").exit_code == 0
    for tag in ("loss", "train/lm_cost"):
        shown, wanted = (scalars(command_line.folder / out, tag) for out in ("parts", "one"))
        assert len(wanted) > 1
        for step, value in wanted.items():
            assert shown[step] == pytest.approx(value, rel=1e-4)


def check_scalars_once_a_step(folder):
    """A step is two runs of the session where two batches of 4 are accumulated."""
    rows = all_scalars(folder)
    found = {(tag, step): value for (step, tag), value in rows}
    assert len(found) == len(rows)
    for tag, steps in (
        ("global_step/sec", [2, 4]),
        ("global_step/sec_predicted_for_CS-2", [1, 2, 4]),
        ("train/lm_cost", [1, 2, 4]),
    ):
        assert sorted(step for name, step in found if name == tag) == steps, tag
    for step in (2, 4):
        rate = found["global_step/sec", step]
        assert found["examples_per_sec", step] == pytest.approx(2 * 4 * rate)
        assert found["tokens_per_sec", step] == pytest.approx(2 * 4 * 16 * rate)


def test_steps_free_their_scratch_memory(trained):
    """TensorFlow makes each step in a thread that is new to Python."""
    assert trained("train", "--max_steps", "12").exit_code == 0
    before = len(scratch._stacks)
    assert before > 0
    assert trained("train", "--max_steps", "24").exit_code == 0
    assert len(scratch._stacks) <= before + 2


def test_perplexity_of_micro_batches_is_that_of_their_mean_cost(command_line):
    """And not the mean of their perplexities."""
    in_parts = ("    max_steps: 10", "    max_steps: 2\n    micro_batches: 4")
    command_line.change(in_parts, ("save_summary_steps: 5", "save_summary_steps: 1"))
    assert command_line("train").exit_code == 0
    cost, found = (
        scalars(command_line.folder / "out", f"train/lm_{name}") for name in ("cost", "perplexity")
    )
    assert sorted(found) == [1, 2]
    for step, value in found.items():
        assert value == pytest.approx(math.exp(cost[step]), rel=2e-6)
