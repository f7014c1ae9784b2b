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


SHRINKS = {"training_hooks": "dense/kernel", "training_chief_hooks": "dense_1/kernel"}
SPARSE = {"SPARSITY": "0.75", "ONLY_TRAINS": "1"}
SHRUNK = {"SHRINKS": json.dumps(SHRINKS), "ONLY_TRAINS": "1"}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Two wafers, profiled; then sparse in two calls; then with hooks: (folder, text) by run."""
    folder = tmp_path_factory.mktemp("pair")
    runs = {
        "sparse": {**SPARSE, "STOPS_AT": "10"},
        "shrunk": {"SPARSITY": "0", "STOPS_AT": "0", **SHRUNK},
    }
    done = run(2, folder, PROFILE="2", RUNS=json.dumps(runs))
    assert done.returncode == 0, done.stderr
    texts = re.split(r"^RUN \w+$", done.stdout, flags=re.MULTILINE)
    return {name: (folder / name, text) for name, text in zip(("", *runs), texts, strict=True)}


@pytest.fixture(scope="module")
def pair(pairs):
    """The script on two wafers, profiled."""
    return pairs[""]


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


def test_two_wafers_hold_the_same_masks_as_one_also_when_resumed(pairs, tmp_path):
    one, (two, _) = tmp_path / "1", pairs["sparse"]
    wafer_runs.alone(one, **SPARSE)
    wanted, found = (variables(folder, STEPS) for folder in (one, two))
    for name, content in wanted.items():
        np.testing.assert_allclose(found[name], content, rtol=1e-3, atol=1e-5, err_msg=name)
        np.testing.assert_array_equal(is_pruned(found[name]), is_pruned(content), name)
    assert is_pruned(wanted["dense_1/kernel"]).mean() == 0.75


def test_what_hooks_assign_on_two_wafers_is_what_they_do_on_one(alone, pairs, tmp_path):
    """A hook of every process, and one of the chief alone."""
    one = tmp_path / "1"
    check_training((one, wafer_runs.alone(one, **SHRUNK)), pairs["shrunk"])
    plain = variables(alone[0], STEPS)
    for name in SHRINKS.values():
        assert np.linalg.norm(variables(one, STEPS)[name]) < 0.8 * np.linalg.norm(plain[name])


@pytest.mark.slow
def test_four_wafers_from_files_train_as_one(alone, tmp_path):
    given = {"MEMORYX_DIR": str(tmp_path / "store")}
    done = run(4, tmp_path / "four", STEPS, **given)
    assert done.returncode == 0, done.stderr
    check_equal(alone, (tmp_path / "four", done.stdout))


@pytest.mark.slow  # of programs without TensorFlow in tests/swarmx/test_launch.py
def test_a_process_that_is_stopped_ends_the_job_soon(tmp_path):
    process = start(tmp_path / "run", 10**6)
    os.kill(process_of(tmp_path / "run", 1), signal.SIGSTOP)
    since = time.monotonic()
    _, message = process.communicate(timeout=LIMIT_S)
    assert time.monotonic() - since < SOON_S
    assert process.returncode not in (0, None)
    assert re.search("rank 1 .* was stopped", message), message
    newest = tf.train.latest_checkpoint(str(tmp_path / "run"))
    assert variables(tmp_path / "run", int(newest.rpartition("-")[2]))


def test_a_killed_job_ends_soon_restarts_itself_and_ends_with_the_same_bits(pair, tmp_path):
    folder, _ = pair
    process = start(tmp_path / "run", STEPS, "--requeue")
    try:
        os.kill(process_of(tmp_path / "run", 1), signal.SIGKILL)
    except (AssertionError, ProcessLookupError):
        pytest.skip("it had ended")
    since = time.monotonic()
    lines = iter(process.stderr.readline, "")
    assert any(re.search("rank 1 .* signal 9.*the job was ended", line) for line in lines)
    assert time.monotonic() - since < SOON_S
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
