"""Recurrent models in the style of public Estimator code give the host's numbers on the wafer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

from tests.e2e.both_sides import check
from tests.foreign.recurrent_models import MODELS

pytestmark = pytest.mark.tf
v1 = tf.compat.v1


@pytest.mark.parametrize("name", list(MODELS))
def test_wafer_and_host_agree(name, tmp_path):
    if "rnn" in name and not hasattr(v1.nn, "dynamic_rnn"):
        pytest.skip("TensorFlow has no such function")
    check(MODELS[name], tmp_path, False)


@pytest.mark.parametrize(
    "models",
    [["dynamic_rnn"], pytest.param(list(MODELS), marks=pytest.mark.slow)],
    ids=["one", "all"],
)
def test_wafer_and_host_agree_with_version_two_switched_off(models, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "tests.foreign.recurrent_models", str(tmp_path), *models],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert [line.split()[1] for line in done.stdout.splitlines()] == models
