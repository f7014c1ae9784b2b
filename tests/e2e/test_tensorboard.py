"""Checks that TensorBoard shows what runs on the wafer write: scalars, histograms and text.

TensorBoard is started on the folders of two short runs, one of an own model and one of the model
zoo's runner, and asked through its HTTP API; once, in a headless browser, its page is looked at.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import urllib.parse
import urllib.request

import pytest

pytest.importorskip("tensorflow")
pytest.importorskip("tensorboard")

import tensorflow as tf

from cerebras_tf.estimator.estimator import CerebrasEstimator
from cerebras_tf.estimator.run_config import CSRunConfig
from tests.e2e.command_line import CommandLine

pytestmark = pytest.mark.tf

STEPS = 20
EVERY_N_STEPS = 5
TOKENS_PER_STEP = 4 * 16
PAGE_ADDRESS = re.compile(r"http://(?:localhost|127\.0\.0\.1):(\d+)/")


def model_fn(features, labels, mode):
    """A line fitted by gradient descent, with a summary of every kind."""
    weights = tf.compat.v1.get_variable("weights", initializer=[[1.0], [2.0], [3.0]])
    loss = tf.reduce_mean(tf.square(tf.matmul(features, weights) - labels))
    tf.compat.v1.summary.scalar("train/lr", tf.constant(0.125))
    tf.compat.v1.summary.histogram("weight_values", weights)
    tf.compat.v1.summary.text("remark", tf.constant("a line through the origin"))
    step = tf.compat.v1.train.get_or_create_global_step()
    train_op = tf.compat.v1.train.GradientDescentOptimizer(0.125).minimize(loss, step)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def input_fn():
    return tf.data.Dataset.from_tensors((tf.eye(4, 3), tf.zeros([4, 1]))).repeat()


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    """The folder with two finished runs: `line`, an own model, and `gpt`, one of the zoo."""
    folder = tmp_path_factory.mktemp("runs")
    config = CSRunConfig(save_summary_steps=EVERY_N_STEPS, tf_random_seed=1)
    CerebrasEstimator(model_fn, str(folder / "line"), config=config).train(
        input_fn, max_steps=STEPS, use_cs=True
    )
    zoo = CommandLine(tmp_path_factory.mktemp("zoo"))
    zoo.change(("learning_rate: 1e-2", "learning_rate: 1e-2\n    log_hists: True"))
    result = zoo("train", "--max_steps", str(STEPS), "-o", str(folder / "gpt"))
    assert result.exit_code == 0
    return folder


@pytest.fixture(scope="module")
def address(model_dir):
    """The address of a TensorBoard that has read the run's folder."""
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(model_dir)]
    # Port 0 takes a free one; load_fast=false reads in this process, with nothing downloaded.
    command += ["--host", "127.0.0.1", "--port", "0", "--load_fast", "false"]
    process = subprocess.Popen(
        [*command, "--reload_interval", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        seen = []
        for line in process.stdout:
            seen.append(line)
            if found := PAGE_ADDRESS.search(line):
                yield f"http://127.0.0.1:{found.group(1)}/"
                return
        pytest.fail("TensorBoard ended without an address:\n" + "".join(seen))
    finally:
        process.terminate()
        process.communicate(timeout=30)


def ask(address, plugin, run=None, tag=None):
    """Returns what a plugin knows: its tags by run, or the points of a run's tag."""
    query = "" if tag is None else "?" + urllib.parse.urlencode({"run": run, "tag": tag})
    kind = "tags" if tag is None else plugin
    url = f"{address}data/plugin/{plugin}/{kind}{query}"
    with urllib.request.urlopen(url, timeout=30) as response:
        return json.load(response)


def scalar(address, run, tag):
    """Returns step -> value of a scalar."""
    return {step: value for _, step, value in ask(address, "scalars", run, tag)}


def text(address, run, tag):
    """Returns the first text of a tag, as HTML."""
    query = urllib.parse.urlencode({"run": run, "tag": tag})
    url = f"{address}data/plugin/text/text?{query}"
    with urllib.request.urlopen(url, timeout=30) as response:
        return json.load(response)[0]["text"]


def test_tensorboard_lists_every_scalar_of_the_runs(address):
    tags = ask(address, "scalars")
    shared = {"loss", "train/lr", "global_step/sec", "examples_per_sec"}
    shared |= {"wafer/memory_high_water_bytes"}
    assert shared <= set(tags["line"])
    own = {"train/unclipped_grad_norm", "train/loss_scale", "tokens_per_sec", "train/lm_cost"}
    assert shared | own <= set(tags["gpt"])


def test_tensorboard_shows_the_loss_falling_and_the_learning_rate(address):
    for run, rate in (("line", 0.125), ("gpt", 0.01)):
        loss = scalar(address, run, "loss")
        assert list(loss) == sorted(loss)
        assert loss[max(loss)] < loss[min(loss)]
        rates = list(scalar(address, run, "train/lr").values())
        assert rates == pytest.approx([rate] * len(loss))


def test_tensorboard_shows_the_rates_and_the_memory_mark(address):
    steps_per_s = scalar(address, "gpt", "global_step/sec")
    tokens_per_s = scalar(address, "gpt", "tokens_per_sec")
    assert list(steps_per_s) == list(range(EVERY_N_STEPS, STEPS + 1, EVERY_N_STEPS))
    for step, rate in steps_per_s.items():
        assert tokens_per_s[step] == pytest.approx(TOKENS_PER_STEP * rate, rel=1e-5)
    marks = set(scalar(address, "gpt", "wafer/memory_high_water_bytes").values())
    assert len(marks) == 1
    assert marks.pop() > 4 * TOKENS_PER_STEP * 257  # the logits at least


def test_tensorboard_shows_histograms_and_text(address):
    histograms = ask(address, "histograms")
    assert "weight_values" in histograms["line"]
    kernel = "weight/input_embedding/embedding_weights"
    assert kernel in histograms["gpt"]
    for run, tag in (("line", "weight_values"), ("gpt", kernel)):
        assert len(ask(address, "histograms", run, tag)) >= STEPS // EVERY_N_STEPS
    assert "a line through the origin" in text(address, "line", "remark")
    params = text(address, "gpt", "params")
    assert "log_hists: true" in params.lower()
    assert "num_hidden_layers: 1" in params


@pytest.mark.slow
def test_the_page_shows_the_scalars_in_a_browser(address, tmp_path):
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        pytest.skip("no chromium on this machine; Debian's package `chromium` has it")
    shared = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1400,1000"]
    shared += [f"--user-data-dir={tmp_path}/profile", "--virtual-time-budget=20000"]
    page = subprocess.run(
        [*shared, "--dump-dom", f"{address}?darkMode=false#timeseries"],
        capture_output=True,
        text=True,
        timeout=120,
    ).stdout
    assert "global_step/sec" in page
    assert "examples_per_sec" in page
    assert "Smoothed" in page  # the table of values under a plot
    picture = tmp_path / "page.png"
    subprocess.run(
        [*shared, f"--screenshot={picture}", f"{address}#timeseries"],
        capture_output=True,
        timeout=120,
        check=True,
    )
    assert len(set(read_png_rows(picture))) > 100


def read_png_rows(path):
    """Returns the rows of a picture as bytes; a blank page has few different ones."""
    pixels = tf.io.decode_png(path.read_bytes(), channels=3).numpy()
    return [row.tobytes() for row in pixels]
