"""num_threads: kernels have as many threads as the configuration says, and the same results."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from cerebras_tf import CerebrasEstimator, CSRunConfig
from cerebras_tf.errors import ConfigError
from cerebras_tf.kernels import compiled_threads
from tests.tolerances import TOLERANCES

pytestmark = pytest.mark.tf
v1 = tf.compat.v1


def model_fn(features, labels, mode):
    tf.keras.utils.set_random_seed(1)
    hidden = v1.layers.dense(features, 300, tf.nn.relu, name="hidden")
    loss = tf.reduce_mean(tf.square(v1.layers.dense(hidden, 1, name="out") - labels))
    step = v1.train.get_or_create_global_step()
    train_op = v1.train.GradientDescentOptimizer(0.01).minimize(loss, step)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def input_fn():
    x = np.random.default_rng(0).standard_normal((600, 200)).astype(np.float32)
    return tf.data.Dataset.from_tensors((x, x.sum(1, keepdims=True))).repeat()


def test_kernels_have_as_many_threads_as_the_configuration_says(tmp_path, monkeypatch):
    monkeypatch.setattr(compiled_threads, "_pool", None)
    monkeypatch.setenv("CEREBRAS_TF_THREADS", "2")
    found = []
    for count, threads in ((1, 1), (3, 3), (None, 2)):
        config = CSRunConfig(tf_random_seed=1, num_threads=count)
        made = CerebrasEstimator(model_fn, str(tmp_path / str(count)), config=config, use_cs=True)
        made.train(input_fn, max_steps=3)
        assert compiled_threads.num_threads() == threads
        found.append(made.get_variable_value("hidden/kernel"))
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], *TOLERANCES["training_variable"])


@pytest.mark.parametrize("count", [0, -1, True, 1.5, "2", 1025])
def test_what_is_no_number_of_threads_is_refused(count):
    with pytest.raises(ConfigError, match="num_threads must be .*Received: "):
        CSRunConfig(num_threads=count)
    with pytest.raises(ConfigError, match="num_threads must be"):
        CSRunConfig().replace(num_threads=count)
