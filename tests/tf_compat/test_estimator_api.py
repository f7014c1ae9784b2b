"""tf.estimator is there on every supported TensorFlow, whatever a script imports first."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow")

CHECKS = """
assert tf.estimator.ModeKeys.TRAIN == "train"
assert issubclass(tf.estimator.Estimator, tf.compat.v1.estimator.Estimator)
assert tf.estimator.DNNClassifier and tf.estimator.BestExporter
assert tf.estimator.experimental.stop_if_no_decrease_hook
assert tf.compat.v1.estimator.tpu.TPUEstimator
from tensorflow import estimator
from tensorflow.compat.v1 import estimator as estimator_v1
assert estimator.RunConfig is estimator_v1.RunConfig
from tensorflow_estimator.python.estimator.canned import head
assert "train_and_evaluate" in dir(tf.estimator)
with tf.Graph().as_default():
    assert tf.keras.layers.Dense(3)(tf.ones([2, 4])).graph is tf.compat.v1.get_default_graph()
    assert len(tf.compat.v1.trainable_variables()) == 2
"""


def run(script: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a script in a process of its own."""
    environment = {k: v for k, v in os.environ.items() if k != "TF_USE_LEGACY_KERAS"}
    return subprocess.run(
        [sys.executable, "-c", script],
        env={**environment, "TF_CPP_MIN_LOG_LEVEL": "2", **variables},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.parametrize("first", ["cerebras_tf", "tensorflow", "cerebras.tf.cs_estimator"])
def test_tf_estimator_is_provided(first):
    ran = run(f"import {first}\nimport cerebras_tf\nimport tensorflow as tf\n{CHECKS}")
    assert ran.returncode == 0, ran.stderr


def test_private_modules_can_be_imported_first_and_show_no_line_of_level_info():
    script = "from tensorflow_estimator.python.estimator.canned import head"
    ran = run(f"import cerebras_tf\n{script}\nassert head\nimport tensorflow")
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.skipif(find_spec("triton") is None, reason="needs PyTorch for GPUs")
def test_triton_can_be_imported_after_tensorflow():
    ran = run("import cerebras_tf, tensorflow, triton")
    assert ran.returncode == 0, ran.stderr


@pytest.mark.skipif(tf.__version__.startswith("2.15."), reason="2.15 comes with the package")
def test_a_missing_package_is_named():
    script = """
import sys
import cerebras_tf, tensorflow as tf
sys.modules["tensorflow_estimator"] = None
tf.estimator.RunConfig
"""
    ran = run(script)
    assert ran.returncode == 1
    assert "tf.estimator: " in ran.stderr and "tensorflow_estimator" in ran.stderr
