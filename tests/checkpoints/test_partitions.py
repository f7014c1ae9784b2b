"""Partitioned variables are saved as TensorFlow's Saver does."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import tensorflow as tf

from cerebras_tf.checkpoints import saver
from cerebras_tf.errors import CheckpointError
from tests.estimator.regression import build, dataset, variables_of
from tests.messages import raises

pytestmark = pytest.mark.tf
v1 = tf.compat.v1


def model_fn(features, labels, mode, params):
    """A table in three parts of differing sizes and a layer in two, by Adam."""
    start = v1.random_normal_initializer(seed=1)
    size = params.get("size", 3)
    with v1.variable_scope("split", partitioner=v1.fixed_size_partitioner(params["parts"])):
        kernel = v1.get_variable("kernel", [size, 5], initializer=start)
        hidden = tf.tanh(tf.matmul(features, tf.convert_to_tensor(kernel)[:3]))
        scores = tf.squeeze(v1.layers.dense(hidden, 1, name="output", kernel_initializer=start), -1)
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, {"scores": scores})
    loss = tf.reduce_mean(tf.square(scores - labels))
    train_op = v1.train.AdamOptimizer(0.1).minimize(loss, v1.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def trained(folder, sides, parts=2):
    """Checkpoint of a run that changes between wafer and host after every two steps."""
    made = build(folder, {"parts": parts}, model_fn)
    for index, side in enumerate(sides):
        made.train(functools.partial(dataset, 2 * index), steps=2, use_cs=side)
    return variables_of(folder)


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("host"), [False] * 3)


@pytest.mark.parametrize(
    ("sides", "shard_bytes"),
    [((True, False, True), saver.SHARD_BYTES), ((False, True, False), 8)],
    ids=["one shard", "many shards"],
)
def test_host_and_wafer_read_each_others_parts(host, sides, shard_bytes, tmp_path, monkeypatch):
    monkeypatch.setattr(saver, "SHARD_BYTES", shard_bytes)
    mixed = trained(tmp_path / "mixed", sides)
    assert set(mixed) == set(host)
    assert {"split/kernel", "split/kernel/Adam", "split/output/kernel"} <= set(mixed)
    for name, content in host.items():
        np.testing.assert_allclose(mixed[name], content, rtol=1e-4, atol=1e-6, err_msg=name)


def test_training_continues_with_other_parts(tmp_path):
    before = trained(tmp_path, [True], parts=3)
    made = build(tmp_path, {"parts": 2}, model_fn)
    made.train(lambda: dataset(2), steps=1, use_cs=True)
    after = variables_of(tmp_path)
    assert {name: array.shape for name, array in after.items()} == {
        name: array.shape for name, array in before.items()
    }


def test_a_whole_of_another_shape_is_refused(tmp_path):
    trained(tmp_path, [True])
    made = build(tmp_path, {"parts": 2, "size": 4}, model_fn)
    with raises(CheckpointError, "split/kernel [3, 5] instead of [4, 5]"):
        made.train(dataset, steps=1, use_cs=True)
