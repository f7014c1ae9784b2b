"""Gradients that an optimizer takes of TensorFlow models pass a boundary, which compiling keeps."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

from cerebras_tf.compiler.pipeline import compile_step
from tests.capture.steps_of_both import Built, captured

pytestmark = pytest.mark.tf
v1 = tf.compat.v1
IDS = np.array([1, 3, 1], np.int32)
START = np.random.default_rng(1).standard_normal((5, 3)).astype(np.float32)


def network(ids):
    """A table that is looked up, a matrix behind it, and the loss."""
    table = v1.get_variable("table", initializer=START)
    kernel = v1.get_variable("kernel", initializer=START[:3])
    hidden = tf.matmul(tf.nn.embedding_lookup(table, ids), kernel)
    return tf.reduce_sum(tf.square(tf.tanh(hidden)))


def plain(ids):
    return Built(effects=[v1.train.AdamOptimizer(0.01).minimize(network(ids))])


def clipped(ids):
    optimizer = v1.train.MomentumOptimizer(0.1, 0.9)
    gradients, variables = zip(*optimizer.compute_gradients(network(ids)))
    gradients, _ = tf.clip_by_global_norm(gradients, 0.5)
    return Built(effects=[optimizer.apply_gradients(zip(gradients, variables))])


def accumulating(ids):
    """Dense sums of gradients, applied and emptied at every second step."""
    optimizer = v1.train.GradientDescentOptimizer(0.1)
    pairs = optimizer.compute_gradients(network(ids))
    count = v1.get_variable("count", [], tf.int32, v1.zeros_initializer(), trainable=False)
    sums = [v1.get_variable(f"{v.op.name}/sum", initializer=tf.zeros(v.shape)) for _, v in pairs]
    added = [s.assign_add(tf.convert_to_tensor(g)) for s, (g, _) in zip(sums, pairs)]

    def apply():
        with tf.control_dependencies(added):
            held = [tf.identity(s) for s in sums]
        applied = optimizer.apply_gradients([(h, v) for h, (_, v) in zip(held, pairs)])
        with tf.control_dependencies([applied]):
            return tf.group(*(s.assign(tf.zeros_like(s)) for s in sums))

    with tf.control_dependencies(added):
        full = tf.equal(count % 2, 1)
        moved = tf.cond(full, apply, lambda: tf.no_op())
    with tf.control_dependencies([moved]):
        return Built(effects=[count.assign_add(1).op])


@pytest.mark.parametrize("build", [plain, clipped, accumulating])
def test_gradients_have_the_same_names_before_and_after_compiling(build):
    step = captured(build, IDS)
    before = {name: [len(n.outputs) for n in nodes] for name, nodes in step.gradients.items()}
    assert before == {"table": [2], "kernel": [1]}  # rows and their numbers; a matrix
    program = compile_step(step)
    after = {name: [len(n.outputs) for n in nodes] for name, nodes in step.gradients.items()}
    assert after == before
    made = [item for item in program.instructions() if item.op == "parameter_gradient"]
    assert sorted(item.attrs["variable"] for item in made) == ["kernel", "table"]
