"""tf.estimator is there on every supported TensorFlow, whatever a script imports first."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow")

not_on_2_15 = pytest.mark.skipif(
    tf.__version__.startswith("2.15."), reason="2.15 comes with the package"
)
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


IMPORTS = """
from tensorflow.estimator import Estimator
import tensorflow.estimator
import tensorflow.compat.v1.estimator
from tensorflow.compat.v1.estimator import Estimator as EstimatorV1
from tensorflow.estimator.experimental import LinearSDCA
from tensorflow.python.estimator.model_fn import EstimatorSpec
from tensorflow.python.estimator import estimator
from tensorflow.python.estimator.canned.head import _Head
import tensorflow as tf
assert Estimator is tensorflow.estimator.Estimator is tf.estimator.Estimator
assert issubclass(Estimator, EstimatorV1) and EstimatorV1 is tf.compat.v1.estimator.Estimator
assert EstimatorSpec is tf.estimator.EstimatorSpec and estimator.EstimatorV2 is Estimator
assert LinearSDCA is tf.estimator.experimental.LinearSDCA
try:
    import tensorflow.estimator.nothing
except ModuleNotFoundError:
    pass
"""


FORKS = """
import os, warnings, cerebras_tf, tensorflow
warnings.filterwarnings("ignore", ".*multi-threaded")
for line in 1, 3, 6:
    if os.fork() == 0:
        exec("\\n".join([lines[line], *lines]))
        break
    assert os.wait()[1] == 0, line
"""


def test_modules_can_be_imported_by_their_paths():
    """Each import also comes first once."""
    ran = run(f"lines = {IMPORTS.splitlines()}\n{FORKS}")
    assert (ran.returncode, ran.stderr) == (0, "")


@not_on_2_15
@pytest.mark.parametrize(
    ("missing", "use"),
    [
        ("tensorflow_estimator", "from tensorflow.estimator import RunConfig"),
        ("tf_keras", "tf.estimator.RunConfig"),
        ("tf_keras", "cerebras_tf.CSRunConfig"),
    ],
)
def test_a_missing_package_is_named(missing, use):
    script = f"""
import sys
from importlib import util
find_spec = util.find_spec
util.find_spec = lambda name, *rest: None if name == "{missing}" else find_spec(name, *rest)
sys.modules["{missing}"] = None
import cerebras_tf, tensorflow as tf
{use}
"""
    ran = run(script)
    assert ran.returncode == 1
    assert "tf.estimator: " in ran.stderr and f"Received: no {missing}." in ran.stderr


TRAIN = """
import tempfile
import cerebras_tf, keras, tensorflow as tf

def model_fn(features, labels, mode):
    x = features
    logits = LAYERS
    loss = tf.reduce_mean(logits**2)
    step = tf.compat.v1.train.get_global_step()
    train_op = tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(loss, step)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

def input_fn():
    return tf.data.Dataset.from_tensors((tf.ones([2, 4]), tf.ones([2]))).repeat()

made = Estimator(model_fn, tempfile.mkdtemp()).train(input_fn, steps=1)
made.evaluate(input_fn, steps=1)
"""


@not_on_2_15
@pytest.mark.parametrize(
    ("estimator", "layers", "legacy", "refused"),
    [
        ("tf.estimator.Estimator", "keras.layers.Dense(3)(x)", "1", ""),
        (
            "cerebras_tf.CerebrasEstimator",
            "keras.layers.BatchNormalization()(x, training=True)",
            "1",
            "/moving_mean",
        ),
        (
            "tf.estimator.Estimator",
            "tf.keras.layers.Dense(3)(tf.keras.layers.Dropout(0.5)(x, training=True))",
            "0",
            "/seed_generator",
        ),
    ],
)
def test_layers_of_keras_3_with_updates_are_refused(estimator, layers, legacy, refused):
    script = TRAIN.replace("LAYERS", layers).replace("Estimator(m", f"{estimator}(m")
    ran = run(script, TF_USE_LEGACY_KERAS=legacy)
    assert (ran.returncode != 0) == bool(refused), ran.stderr
    assert not refused or ("Keras 3" in ran.stderr and refused in ran.stderr)
