"""Checks that TensorBoard shows what a run writes: scalars, histograms and text.

TensorBoard is started on the folder of a short run and asked through its HTTP API; once, in a
headless browser, its page is looked at.
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

from cerebras_tf.estimator.hooks import PerformanceSummaryHook

pytestmark = pytest.mark.tf

STEPS = 20
EVERY_N_STEPS = 5
TOKENS_PER_STEP = 4 * 3
PAGE_ADDRESS = re.compile(r"http://(?:localhost|127\.0\.0\.1):(\d+)/")


def model_fn(features, labels, mode):
    """A line fitted by gradient descent, with a summary of every kind."""
    weights = tf.compat.v1.get_variable("weights", initializer=[[1.0], [2.0], [3.0]])
    loss = tf.reduce_mean(tf.square(tf.matmul(features, weights) - labels))
    tf.compat.v1.summary.scalar("train/lr", tf.constant(0.125))
    tf.compat.v1.summary.histogram("weight_values", weights)
    tf.compat.v1.summary.text("params", tf.constant("runconfig: {max_steps: 20}"))
    step = tf.compat.v1.train.get_or_create_global_step()
    train_op = tf.compat.v1.train.GradientDescentOptimizer(0.125).minimize(loss, step)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def input_fn():
    return tf.data.Dataset.from_tensors((tf.eye(4, 3), tf.zeros([4, 1]))).repeat()


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    """The folder of a finished run."""
    folder = tmp_path_factory.mktemp("run")
    config = tf.estimator.RunConfig(
        save_summary_steps=EVERY_N_STEPS, log_step_count_steps=None, tf_random_seed=1
    )
    performance = PerformanceSummaryHook(
        str(folder), EVERY_N_STEPS, 4, TOKENS_PER_STEP, lambda: 123456.0
    )
    tf.estimator.Estimator(model_fn, str(folder), config).train(
        input_fn, hooks=[performance], max_steps=STEPS
    )
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


def ask(address, plugin, tag=None):
    """Returns what a plugin knows: its tags, or with a tag the points of the only run."""
    query = "" if tag is None else "?" + urllib.parse.urlencode({"run": ".", "tag": tag})
    kind = "tags" if tag is None else plugin
    url = f"{address}data/plugin/{plugin}/{kind}{query}"
    with urllib.request.urlopen(url, timeout=30) as response:
        return json.load(response)


def scalar(address, tag):
    """Returns step -> value of a scalar."""
    return {step: value for _, step, value in ask(address, "scalars", tag)}


def test_tensorboard_lists_every_scalar_of_the_run(address):
    tags = set(ask(address, "scalars")["."])
    performance = {"global_step/sec", "examples_per_sec", "tokens_per_sec"}
    assert performance | {"loss", "train/lr", "wafer/memory_high_water_bytes"} <= tags


def test_tensorboard_shows_the_loss_falling_and_the_learning_rate(address):
    loss = scalar(address, "loss")
    assert list(loss) == sorted(loss)
    assert loss[max(loss)] < loss[min(loss)]
    assert set(scalar(address, "train/lr").values()) == {0.125}


def test_tensorboard_shows_the_rates_and_the_memory_mark(address):
    steps_per_s = scalar(address, "global_step/sec")
    tokens_per_s = scalar(address, "tokens_per_sec")
    assert list(steps_per_s) == list(range(EVERY_N_STEPS, STEPS + 1, EVERY_N_STEPS))
    for step, rate in steps_per_s.items():
        assert tokens_per_s[step] == pytest.approx(TOKENS_PER_STEP * rate, rel=1e-5)
    assert set(scalar(address, "wafer/memory_high_water_bytes").values()) == {123456.0}


def test_tensorboard_shows_histograms_and_text(address):
    assert "weight_values" in ask(address, "histograms")["."]
    points = ask(address, "histograms", "weight_values")
    assert len(points) >= STEPS // EVERY_N_STEPS
    url = f"{address}data/plugin/text/text?run=.&tag=params"
    with urllib.request.urlopen(url, timeout=30) as response:
        assert "max_steps: 20" in json.load(response)[0]["text"]


@pytest.mark.slow
def test_the_page_shows_the_scalars_in_a_browser(address, tmp_path):
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        pytest.skip("no chromium on this machine; Debian's package `chromium` has it")
    shared = [
        browser,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--window-size=1400,1000",
    ]
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
