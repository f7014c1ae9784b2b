"""A user's script on several wafers: same losses, metrics, predictions and checkpoints as on one.

And where a process fails: the job ends soon, names which and why, and can be resumed.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import yaml

from cerebras_tf.memoryx.sparsity import is_pruned
from tests.e2e import wafer_runs
from tests.e2e.wafer_runs import (
    BATCH,
    LIMIT_S,
    SCRIPT,
    STEPS,
    environment,
    losses,
    printed,
    process_of,
    run,
    start,
    variables,
)
from tests.reading import scalars_of
from tests.scripts.conftest import Launchers
from tests.swarmx.ranks import ROOT, SLURM_CONFIGURATION, needs_mpi, needs_slurm

pytestmark = [pytest.mark.tf, needs_mpi()]
SOON_S = 10


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The script on one wafer."""
    folder = tmp_path_factory.mktemp("alone")
    return folder, wafer_runs.alone(folder)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """The script on two wafers, profiled."""
    folder = tmp_path_factory.mktemp("pair")
    done = run(2, folder, PROFILE="2")
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def check_training(one, several):
    (folder, text), (other_folder, other_text) = one, several
    np.testing.assert_allclose(
        list(losses(other_text).values()), list(losses(text).values()), rtol=2e-6
    )
    found, wanted = variables(other_folder, STEPS), variables(folder, STEPS)
    for name, content in wanted.items():
        np.testing.assert_allclose(found[name], content, rtol=1e-3, atol=1e-5, err_msg=name)


def check_equal(one, several):
    check_training(one, several)
    (_, text), (_, other_text) = one, several
    for word in ("WHOLE", "PART"):
        found, wanted = printed(other_text, word), printed(text, word)
        assert found.keys() == wanted.keys()
        for name, value in wanted.items():
            assert found[name] == pytest.approx(value, rel=1e-4), (word, name)
    np.testing.assert_allclose(
        printed(other_text, "PREDICTED"), printed(text, "PREDICTED"), rtol=1e-3, atol=1e-4
    )


def test_two_wafers_train_evaluate_and_predict_as_one(alone, pair):
    check_equal(alone, pair)


def test_only_the_first_process_writes(pair):
    folder, _ = pair
    assert len(list(folder.glob("events.*"))) == 1
    assert len(list((folder / "eval").glob("events.*"))) == 1
    logs = sorted(path.name for path in (folder / "logs").glob("rank_*.log"))
    assert logs == ["rank_0.log", "rank_1.log"]
    assert [path.name for path in (folder / "profile").iterdir()] == ["trace.json"]
    first, second = (Path(folder, "logs", name).read_text(encoding="utf-8") for name in logs)
    assert len(re.findall("swarmx: .* GB sent, .* per step by this wafer", first)) >= 1
    assert "2 steps of " in first and "profile" not in second


@needs_slurm()
@pytest.mark.parametrize(
    "wafers", [pytest.param(n, marks=[pytest.mark.slow] if n != 2 else []) for n in (1, 2, 4)]
)
def test_a_script_trains_through_slurm_as_on_one_wafer(alone, wafers, tmp_path):
    launchers = Launchers(tmp_path)
    launchers.complete(f'#!/bin/bash\nexec "{sys.executable}" "$@"\n')
    launchers.complete_mpi()
    rows = str(BATCH // wafers)
    done = launchers.run(
        *("csrun_wse", "--num_csx", str(wafers), "python-ws"),
        *(str(SCRIPT), str(tmp_path / "run"), rows, str(STEPS)),
        **environment(SLURM_CONF=SLURM_CONFIGURATION),
    )
    assert done.returncode == 0, done.stderr
    what = "1 wafer, a task" if wafers == 1 else f"{wafers} wafers, tasks"
    assert f"csrun_wse: {what} of Slurm's srun" in done.stderr
    check_equal(alone, (tmp_path / "run", done.stdout))


@pytest.mark.slow
def test_four_local_processes_train_as_one(alone, tmp_path):
    done = run(4, tmp_path / "four")
    assert done.returncode == 0, done.stderr
    check_equal(alone, (tmp_path / "four", done.stdout))


def test_two_wafers_hold_the_same_masks_as_one_also_when_resumed(tmp_path):
    given = {"SPARSITY": "0.75", "ONLY_TRAINS": "1"}
    one, two = tmp_path / "1", tmp_path / "2"
    wafer_runs.alone(one, **given)
    for steps in (10, STEPS):
        done = run(2, two, steps, **given)
        assert done.returncode == 0, done.stderr
    wanted, found = (variables(folder, STEPS) for folder in (one, two))
    for name, content in wanted.items():
        np.testing.assert_allclose(found[name], content, rtol=1e-3, atol=1e-5, err_msg=name)
        np.testing.assert_array_equal(is_pruned(found[name]), is_pruned(content), name)
    assert is_pruned(wanted["dense_1/kernel"]).mean() == 0.75


def test_what_hooks_assign_on_two_wafers_is_what_they_do_on_one(alone, tmp_path):
    """A hook of every process, and one of the chief alone."""
    shrinks = {"training_hooks": "dense/kernel", "training_chief_hooks": "dense_1/kernel"}
    given = {"SHRINKS": json.dumps(shrinks), "ONLY_TRAINS": "1"}
    one, two = tmp_path / "1", tmp_path / "2"
    shown = wafer_runs.alone(one, **given)
    done = run(2, two, **given)
    assert done.returncode == 0, done.stderr
    check_training((one, shown), (two, done.stdout))
    plain = variables(alone[0], STEPS)
    for name in shrinks.values():
        assert np.linalg.norm(variables(one, STEPS)[name]) < 0.8 * np.linalg.norm(plain[name])


@pytest.mark.slow
def test_four_wafers_from_files_train_as_one(alone, tmp_path):
    given = {"MEMORYX_DIR": str(tmp_path / "store")}
    done = run(4, tmp_path / "four", STEPS, **given)
    assert done.returncode == 0, done.stderr
    check_equal(alone, (tmp_path / "four", done.stdout))


@pytest.mark.parametrize(
    "number, what",
    [
        (signal.SIGKILL, "rank 1 .* signal 9"),
        # Of programs without TensorFlow in tests/swarmx/test_launch.py.
        pytest.param(signal.SIGSTOP, "rank 1 .* was stopped", marks=pytest.mark.slow),
    ],
)
def test_a_process_that_is_gone_ends_the_job_soon(number, what, tmp_path):
    process = start(tmp_path / "run", 10**6)
    os.kill(process_of(tmp_path / "run", 1), number)
    since = time.monotonic()
    _, message = process.communicate(timeout=LIMIT_S)
    assert time.monotonic() - since < SOON_S
    assert process.returncode not in (0, None)
    assert re.search(what, message), message
    newest = tf.train.latest_checkpoint(str(tmp_path / "run"))
    assert variables(tmp_path / "run", int(newest.rpartition("-")[2]))


def test_a_killed_job_restarts_itself_and_ends_with_the_same_bits(pair, tmp_path):
    folder, _ = pair
    process = start(tmp_path / "run", STEPS, "--requeue")
    try:
        os.kill(process_of(tmp_path / "run", 1), signal.SIGKILL)
    except (AssertionError, ProcessLookupError):
        pytest.skip("it had ended")
    _, message = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, message
    found, wanted = variables(tmp_path / "run", STEPS), variables(folder, STEPS)
    assert all(np.array_equal(found[name], wanted[name]) for name in wanted)


@pytest.mark.slow
def test_a_model_of_the_zoo_trains_as_one_wafer_that_accumulates(tmp_path):
    tree = yaml.safe_load((ROOT / "configs" / "params_gpt3_tiny.yaml").read_text("utf-8"))
    tree["train_input"].update(max_sequence_length=32, batch_size=8)
    tree["model"].update(hidden_size=64, num_hidden_layers=2, filter_size=128)
    params = tmp_path / "params_gpt3_tiny.yaml"
    params.write_text(yaml.safe_dump(tree), "utf-8")
    runner = [sys.executable, "-m", "modelzoo.common.train.run", "-m", "train"]
    runner += ["-p", params, "--max_steps", "4"]
    one_wafer, several = tmp_path / "one_wafer", tmp_path / "several"
    launch = [sys.executable, "-m", "cerebras_tf.swarmx.launch", "--wafers", "2"]
    for words, given in (
        ([*runner, "-o", one_wafer, "--num_csx", "2"], {}),
        (
            [*launch, "--logs", several / "logs", "--", *runner, "-o", several],
            {"CEREBRAS_TF_NUM_CSX": "2"},
        ),
    ):
        done = subprocess.run(
            [str(word) for word in words],
            env=environment(**given),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    assert "histograms and images" not in done.stdout + done.stderr  # none of one wafer
    shown = [scalars_of(folder) for folder in (one_wafer, several)]
    tags = {tag for _, tag in shown[0] if "lm_" in tag or "cost" in tag}
    assert tags
    for key in (key for key in shown[0] if key[1] in tags):
        assert shown[1][key] == pytest.approx(shown[0][key], rel=1e-5), key
    wanted, found = variables(one_wafer, 4), variables(several, 4)
    assert found["cerebras_tf/random_step"] == wanted["cerebras_tf/random_step"] == 8
    names = [name for name in found if "grad_accum" not in name]
    assert set(names) <= set(wanted)
    for name in names:
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-3, atol=2e-5, err_msg=name)
