"""A user's script on several wafers: same losses, metrics, predictions and checkpoints as on one.

And what happens where a process fails: the job ends soon, says which and why, and goes on.
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

from tests.swarmx.ranks import ROOT, needs_mpi

pytestmark = [pytest.mark.tf, needs_mpi()]
SCRIPT = ROOT / "tests" / "e2e" / "wafer_script.py"
BATCH, STEPS = 8, 24
SOON_S = 10
LIMIT_S = 180


def command(wafers, folder, steps=STEPS, *options):
    script = [sys.executable, SCRIPT, folder, BATCH // wafers, steps]
    if wafers > 1:
        launch = [sys.executable, "-m", "cerebras_tf.swarmx.launch", "--wafers", wafers]
        script = [*launch, "--logs", folder / "logs", *options, "--", *script]
    return [str(word) for word in script]


def environment(**given):
    found = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3", **given}
    found["SLURM_CONF"] = "/none"  # local processes, also where Slurm is installed
    return found


def run(wafers, folder, steps=STEPS, *options, **given):
    """Runs the script to its end; (exit status, what it printed)."""
    folder.mkdir(exist_ok=True)
    done = subprocess.run(
        command(wafers, folder, steps, *options),
        env=environment(**given),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    return done


def told(text, word):
    """What the script printed behind a word."""
    (line,) = [line for line in text.splitlines() if line.startswith(f"{word} ")]
    return json.loads(line.partition(" ")[2])


def losses(text):
    lines = [line.split() for line in text.splitlines() if line.startswith("LOSS ")]
    return {int(step): float(loss) for _, step, loss in lines}


def variables(folder, step):
    reader = tf.train.load_checkpoint(str(folder / f"model.ckpt-{step}"))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The script on one wafer."""
    folder = tmp_path_factory.mktemp("alone")
    done = run(1, folder)
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """The script on two wafers."""
    folder = tmp_path_factory.mktemp("pair")
    done = run(2, folder)
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def check_equal(one, several):
    (folder, text), (other_folder, other_text) = one, several
    np.testing.assert_allclose(
        list(losses(other_text).values()), list(losses(text).values()), rtol=2e-6
    )
    for word in ("WHOLE", "PART"):
        found, wanted = told(other_text, word), told(text, word)
        assert found.keys() == wanted.keys()
        for name, value in wanted.items():
            assert found[name] == pytest.approx(value, rel=1e-4), (word, name)
    np.testing.assert_allclose(
        told(other_text, "PREDICTED"), told(text, "PREDICTED"), rtol=1e-3, atol=1e-4
    )
    found, wanted = variables(other_folder, STEPS), variables(folder, STEPS)
    for name, content in wanted.items():
        np.testing.assert_allclose(found[name], content, rtol=1e-3, atol=1e-5, err_msg=name)


def test_two_wafers_train_evaluate_and_predict_as_one(alone, pair):
    check_equal(alone, pair)


def test_only_the_first_process_writes(pair):
    folder, _ = pair
    assert len(list(folder.glob("events.*"))) == 1
    assert len(list((folder / "eval").glob("events.*"))) == 1
    logs = sorted(path.name for path in (folder / "logs").glob("rank_*.log"))
    assert logs == ["rank_0.log", "rank_1.log"]


@pytest.mark.slow
def test_four_wafers_from_files_train_as_one(alone, tmp_path):
    given = {"MEMORYX_DIR": str(tmp_path / "store")}
    done = run(4, tmp_path / "four", STEPS, **given)
    assert done.returncode == 0, done.stderr
    check_equal(alone, (tmp_path / "four", done.stdout))


def start(folder, steps, *options):
    """The script on two wafers; returns when it has made some steps."""
    folder.mkdir(exist_ok=True)
    out = open(folder / "out", "w", encoding="utf-8")  # noqa: SIM115 - the process's own
    process = subprocess.Popen(
        command(2, folder, steps, *options),
        env=environment(),
        cwd=folder,
        stdout=out,
        stderr=subprocess.PIPE,
        text=True,
    )
    end = time.monotonic() + LIMIT_S
    while len(losses((folder / "out").read_text(encoding="utf-8"))) < 15:
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.05)
    return process


def process_of(folder, rank):
    """Number of the process that runs the script on one wafer."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
            given = (path / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        mine = str(folder).encode() in words and f"CEREBRAS_TF_RANK={rank}".encode() in given
        if mine and b"cerebras_tf.swarmx.rank" not in words:
            return int(path.name)
    raise AssertionError(f"no process of rank {rank}")


@pytest.mark.parametrize(
    "number, what",
    [(signal.SIGKILL, "rank 1 .* signal 9"), (signal.SIGSTOP, "rank 1 .* was stopped")],
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


def test_a_job_that_was_killed_goes_on_by_itself_to_the_same_bits(pair, tmp_path):
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


def test_a_model_of_the_zoo_trains_as_one_that_takes_batches_in_turn(tmp_path):
    runner = [sys.executable, "-m", "modelzoo.common.run", "-m", "train"]
    runner += ["-p", str(ROOT / "configs" / "params_gpt3_tiny.yaml"), "--max_steps", "4"]
    in_turn, several = tmp_path / "in_turn", tmp_path / "several"
    launch = [sys.executable, "-m", "cerebras_tf.swarmx.launch", "--wafers", "2"]
    for words, given in (
        ([*runner, "-o", in_turn, "--num_csx", "2"], {}),
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
    wanted, found = variables(in_turn, 4), variables(several, 4)
    assert found["cerebras_tf/random_step"] == wanted["cerebras_tf/random_step"] == 8
    names = [name for name in found if "grad_accum" not in name]
    assert set(names) <= set(wanted)
    for name in names:
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-3, atol=2e-5, err_msg=name)
