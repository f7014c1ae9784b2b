"""Training from files that is killed at any instant goes on to the bits of a run never killed.

The slow test kills a hundred times; `CEREBRAS_TF_KILLS` gives another number.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from cerebras_tf.memoryx.process_folder import StoreFolder
from tests.reading import assert_same, variables_of

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow")

from cerebras_tf import CerebrasEstimator, CSRunConfig
from cerebras_tf.checkpoints.writer import unfinished
from tests.e2e.test_memoryx import RAM_GB, input_fn, model_fn

ROOT = Path(__file__).resolve().parents[2]
LAST_STEP, SLOW_LAST_STEP = 12, 40
TRAIN = """
import sys
from tests.e2e.test_memoryx_kills import train

print("ready", flush=True)
train(sys.argv[1], sys.argv[2], int(sys.argv[3]))
"""


def train(model, store, last_step):
    """Trains in this process, on one batch: the input begins again with each process."""
    config = CSRunConfig(
        tf_random_seed=1,
        save_checkpoints_steps=2,
        keep_checkpoint_max=2,
        save_summary_steps=None,
        memoryx_dir=str(store),
        memoryx_ram_gb=RAM_GB,
    )
    estimator = CerebrasEstimator(model_fn, str(model), config=config, params={"clip": True})
    estimator.train(lambda: input_fn().take(1).repeat(), max_steps=last_step)


def start(folder, last_step):
    """Starts training in a process of its own, and returns once it is about to train."""
    command = [sys.executable, "-c", TRAIN, str(folder / "model"), str(folder / "store")]
    process = subprocess.Popen(
        [*command, str(last_step)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n", process.communicate()[1].decode()
    return process


def kill_and_go_on(folder, kills, seed, last_step):
    """Trains to the end, killed after random times on the way; returns how often it was killed."""
    random = np.random.default_rng(seed)
    killed = 0
    for _ in range(kills):
        process = start(folder, last_step)
        try:
            process.wait(timeout=random.uniform(0, 3 * last_step / SLOW_LAST_STEP))
            break  # it has come to its end
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
            process.communicate()
            killed += 1
    train(folder / "model", folder / "store", last_step)
    return killed


def check_kills(tmp_path, kills, last_step):
    plain, broken = tmp_path / "plain", tmp_path / "broken"
    train(plain / "model", plain / "store", last_step)
    done, seed = 0, 0
    while done < kills:
        folder = broken / str(seed)
        done += kill_and_go_on(folder, min(kills - done, 8), seed, last_step)
        seed += 1
        assert_same(variables_of(folder / "model"), variables_of(plain / "model"))
        # A run that is killed between its last checkpoint and its end leaves nothing to train.
        StoreFolder(folder / "store").remove()  # as the next training there does
        with unfinished(str(folder / "model" / "model.ckpt")):  # as the next save there does
            pass
        checkpoints = {path.with_suffix("") for path in (folder / "model").glob("*.index")}
        left = [
            path
            for path in (folder / "model").glob("model.ckpt-*")
            if path.with_suffix("") not in checkpoints
        ]
        assert not [*left, *(folder / "store").glob("*")], "files of killed runs are left"


def test_a_run_that_is_killed_ends_with_the_bits_of_one_never_killed(tmp_path):
    check_kills(tmp_path, 1, LAST_STEP)


@pytest.mark.slow
def test_a_hundred_kills_change_no_bit(tmp_path):
    started = time.monotonic()
    kills = int(os.environ.get("CEREBRAS_TF_KILLS", "100"))
    check_kills(tmp_path, kills, SLOW_LAST_STEP)
    print(f"{kills} kills in {time.monotonic() - started:.0f} s")
