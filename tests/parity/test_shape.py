"""Parity of shape ops with TensorFlow: same elements, other shape, order or number of copies."""

from __future__ import annotations

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from tests.parity.harness import check_parity, integers, normal

pytestmark = pytest.mark.tf

# Rows whose gradient adds numbers up, in an order of its own.
GRADIENT_SUMS = ("broadcast_to", "broadcast_shape", "tile")
# name, builder, shape of the operand
ROWS = [
    ("reshape", lambda x: tf.reshape(x[0], [6, 4]), (2, 3, 4)),
    ("reshape_inferred", lambda x: tf.reshape(x[0], [tf.shape(x[0])[0], -1]), (2, 3, 4)),
    ("reshape_to_scalar", lambda x: tf.reshape(x[0], []), (1, 1)),
    ("expand_dims", lambda x: tf.expand_dims(x[0], -1) * 2.0, (2, 3)),
    ("squeeze", lambda x: tf.squeeze(x[0]) * 2.0, (1, 3, 1, 2)),
    ("squeeze_axis", lambda x: tf.squeeze(x[0], [-2]) * 2.0, (1, 3, 1, 2)),
    ("transpose", lambda x: tf.transpose(x[0], [0, 2, 3, 1]), (2, 3, 4, 5)),
    ("transpose_default", lambda x: tf.transpose(x[0]), (2, 3, 4)),
    ("transpose_vector", lambda x: tf.transpose(x[0]) * 2.0, (3,)),
    ("broadcast_to", lambda x: tf.broadcast_to(x[0], [2, 3, 4]), (3, 1)),
    ("broadcast_shape", lambda x: x[0] + tf.ones(tf.broadcast_dynamic_shape([3, 1], [4])), (3, 1)),
    ("tile", lambda x: tf.tile(x[0], [2, 1, 3]), (2, 3, 4)),
    ("fill_times", lambda x: x[0] * tf.fill(tf.shape(x[0]), 3.0), (2, 3)),
    ("zeros_like", lambda x: x[0] + tf.zeros_like(x[0]), (2, 3)),
    ("ones_like", lambda x: x[0] + tf.ones_like(x[0]), (2, 3)),
    ("size_and_rank", lambda x: x[0] * tf.cast(tf.size(x[0]) + tf.rank(x[0]), "float32"), (2, 3)),
    ("range", lambda x: x[0] * tf.range(0.0, 1.0, 0.25), (3, 4)),
    ("range_of_shape", lambda x: x[0] * tf.cast(tf.range(tf.shape(x[0])[1]), "float32"), (3, 4)),
    ("linspace", lambda x: x[0] * tf.linspace(0.0, 1.0, 4), (3, 4)),
    ("band_part_lower", lambda x: tf.linalg.band_part(x[0], -1, 0), (2, 4, 5)),
    ("band_part_upper", lambda x: tf.linalg.band_part(x[0], 0, -1), (4, 4)),
    ("band_part_both", lambda x: tf.linalg.band_part(x[0], 1, 2), (5, 4)),
    ("diag_part", lambda x: tf.linalg.diag_part(x[0]), (2, 4, 3)),
    ("diag_part_wide", lambda x: tf.linalg.diag_part(x[0]), (2, 3, 4)),
    ("tensor_diag_part", lambda x: tf.linalg.tensor_diag_part(x[0]), (3, 3)),
    ("diag", lambda x: tf.linalg.diag(x[0]), (2, 3)),
    ("tensor_diag", lambda x: tf.linalg.tensor_diag(x[0]), (3,)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "build", "shape"), ROWS, ids=[row[0] for row in ROWS])
def test_shape_op_agrees_with_tensorflow(name, build, shape):
    family = "reduction" if name in GRADIENT_SUMS else "shape"
    check_parity(build, [normal(*shape)], family)


@pytest.mark.parametrize("shape", [(2, 4, 5), (2, 5, 4), (3, 3)])
def test_set_diag_agrees_with_tensorflow(shape):
    inputs = [normal(*shape), normal(*shape[:-2], min(shape[-2:]))]
    check_parity(lambda x: tf.linalg.set_diag(x[0], x[1]), inputs, "shape")


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_one_hot_agrees_with_tensorflow(axis):
    indices = np.array([[0, 3, -1], [2, 1, 7]], "int32")
    check_parity(lambda x: tf.one_hot(x[0], 4, 0.9, 0.1, axis=axis), [indices], "shape")


def test_one_hot_of_computed_values_agrees_with_tensorflow():
    inputs = [integers(3, high=4), normal()]

    def build(x):
        return tf.one_hot(x[0], 4, on_value=x[1], off_value=-x[1])

    check_parity(build, inputs, "elementwise")


def test_broadcast_gradient_args_agree_with_tensorflow():
    def build(x):
        first, second = tf.raw_ops.BroadcastGradientArgs(s0=[2, 1, 4], s1=[3, 1])
        return [tf.reduce_sum(x[0], first), tf.reduce_sum(x[0], second)]

    check_parity(build, [normal(2, 3, 4)], "reduction")


def test_inverted_permutation_and_dynamic_stitch_become_constants():
    def build(x):
        order = tf.math.invert_permutation([2, 0, 1])
        shape = tf.dynamic_stitch([[0, 2], [1]], [[4, 2], [3]])
        return tf.reshape(tf.transpose(x[0], order), shape)

    graph = check_parity(build, [normal(2, 3, 4)], "shape")
    assert {node.op for node in graph.nodes} <= {"transpose", "reshape"}


def test_shape_arithmetic_becomes_constant():
    def build(x):
        batch, length = tf.unstack(tf.shape(x[0]))[:2]
        flat = tf.reshape(x[0], tf.stack([batch * length, -1]))
        return tf.reshape(flat, tf.concat([tf.shape(x[0])[:2], [2, 2]], 0))

    graph = check_parity(build, [normal(2, 3, 4)], "shape")
    assert {node.op for node in graph.nodes} == {"reshape"}
    assert all(-1 not in node.attrs["shape"] for node in graph.nodes)


def test_bits_read_as_another_type_are_tensorflows():
    def build(x):
        bits = tf.bitcast(x[0], tf.int32)
        return [bits, tf.bitcast(bits, tf.uint8), tf.bitcast(x[0], tf.int64)]

    check_parity(build, [normal(3, 2)], "shape", gradient=False)
