"""Checks a whole process: the lines it prints, and how it ends on signals and bad losses."""

from __future__ import annotations

import re
import signal
import subprocess
import sys

import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

pytestmark = pytest.mark.tf

PROGRAM = """
import sys
import tensorflow as tf
from cerebras_tf.cli.exit_codes import run_main
from cerebras_tf.estimator.hooks import GracefulStopHook, NanGuardHook
from cerebras_tf.console.progress import ProgressHook
from cerebras_tf.console.shown_steps import ShownSteps

def model_fn(features, labels, mode):
    weight = tf.compat.v1.get_variable("weight", initializer=1.0)
    step = tf.compat.v1.train.get_or_create_global_step()
    loss = tf.reduce_mean(features * weight) / tf.cast(step < int(sys.argv[2]), tf.float32)
    train_op = tf.compat.v1.train.GradientDescentOptimizer(0.0).minimize(loss, step)
    hooks = [NanGuardHook(loss), ProgressHook(loss, ShownSteps(5))]
    return tf.estimator.EstimatorSpec(
        mode, loss=loss, train_op=train_op, training_chief_hooks=hooks
    )

def input_fn():
    return tf.data.Dataset.from_tensors((tf.fill([4], 7.30078125), tf.zeros([4]))).repeat()

def main(argv):
    tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.INFO)
    config = tf.estimator.RunConfig(log_step_count_steps=None)
    estimator = tf.estimator.Estimator(model_fn, argv[0], config)
    with GracefulStopHook(model_dir=argv[0]) as stop:
        estimator.train(input_fn, hooks=[stop])

sys.exit(run_main(main, program="train"))
"""
LINE = re.compile(
    r"^INFO:tensorflow:global_step = (\d+), loss = 7\.30078125, rate = \d+\.\d{3} steps/sec$"
)


@pytest.fixture
def start(tmp_path):
    """Returns a function starting the program, whose loss is infinite from a step on."""
    processes = []

    def start(first_bad_step):
        processes.append(
            subprocess.Popen(
                [sys.executable, "-c", PROGRAM, str(tmp_path), str(first_bad_step)],
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return processes[0]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def last_checkpoint_step(folder):
    return int(tf.train.latest_checkpoint(str(folder)).rsplit("-", 1)[1])


@pytest.mark.parametrize(
    "number,exit_code", [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_leaves_a_checkpoint_and_the_shells_exit_code(start, tmp_path, number, exit_code):
    process = start(first_bad_step=10**9)
    step = next(int(found.group(1)) for found in map(LINE.match, process.stderr) if found)
    assert step == 1
    process.send_signal(number)
    _, rest = process.communicate(timeout=60)
    assert process.returncode == exit_code
    assert "Traceback" not in rest
    assert f"{number.name}: stopping after this step" in rest
    last = last_checkpoint_step(tmp_path)
    assert last >= step
    assert rest.splitlines()[-1].startswith(f"{number.name}: stopped at step {last}; the same")


def test_an_infinite_loss_is_one_paragraph_and_exit_code_2(start, tmp_path):
    process = start(first_bad_step=12)
    _, output = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "Traceback" not in output
    message = " ".join(output[output.index("train: ") :].split())
    assert message.startswith("train: training, step 13: the loss must be finite. Received: inf.")
    assert [int(found.group(1)) for found in map(LINE.match, output.splitlines()) if found] == [
        1,
        5,
        10,
    ]
    assert last_checkpoint_step(tmp_path) == 0
