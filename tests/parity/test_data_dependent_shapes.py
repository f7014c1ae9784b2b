"""Parity with TensorFlow where sizes depend on data: masks, unique, ranges, and what follows."""

from __future__ import annotations

import functools

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from tests.parity import harness
from tests.parity.harness import integers, normal

pytestmark = pytest.mark.tf
check_parity = functools.partial(harness.check_parity, sizes_from_data=True)

X = normal(6, 4)
MASK = np.array([True, False, True, True, False, False])
IDS = np.array([5, 3, 5, 2, 3, 1], "int32")


def _squares(value):
    return tf.reduce_sum(tf.square(value))


# What is done with the rows y that a mask keeps; w is a vector of 4 numbers.
AFTER_MASK = [
    ("nothing", lambda y, w: y),
    ("mean", lambda y, w: tf.reduce_mean(y)),
    ("mean_of_columns", lambda y, w: tf.reduce_mean(tf.square(y), 0)),
    ("max_of_columns", lambda y, w: tf.reduce_max(y, 0)),
    ("broadcasting", lambda y, w: _squares(y * w + w)),
    ("matmul", lambda y, w: _squares(tf.matmul(y, w[:, tf.newaxis]))),
    ("split", lambda y, w: [_squares(part) for part in tf.split(y, 2, -1)]),
    ("columns", lambda y, w: _squares(y[:, 1:3])),
    ("front", lambda y, w: _squares(y[:2])),
    ("beyond", lambda y, w: _squares(y[:20])),
    ("inner", lambda y, w: _squares(y[1:-1])),
    ("element", lambda y, w: tf.square(y[1])),
    ("last", lambda y, w: tf.square(y[-1, 1:])),
    ("slice", lambda y, w: _squares(tf.slice(y, [1, 1], [2, -1]))),
    ("concat", lambda y, w: _squares(tf.concat([w[tf.newaxis], y], 0))),
    ("transpose", lambda y, w: _squares(tf.transpose(y))),
    ("stack", lambda y, w: _squares(tf.stack([y, 2.0 * y], 1))),
    ("reshape", lambda y, w: _squares(tf.reshape(y, [-1, 2, 2]))),
    ("reshape_by_shape", lambda y, w: _squares(tf.reshape(y, [tf.shape(y)[0], 2, -1]))),
    ("tile", lambda y, w: _squares(tf.tile(y, [1, 2]))),
    ("ones", lambda y, w: _squares(tf.ones_like(y) * w)),
    ("fill", lambda y, w: _squares(tf.fill([tf.shape(y)[0], 4], 2.0) * w)),
    ("gather", lambda y, w: tf.gather(y, [0, 0, 1])),
    ("count", lambda y, w: w * tf.cast(tf.size(y), tf.float32)),
]


@pytest.mark.parametrize(("name", "after"), AFTER_MASK, ids=[row[0] for row in AFTER_MASK])
def test_masked_rows_agree_with_tensorflow(name, after):
    def build(x):
        return after(tf.boolean_mask(x[0], x[1]), x[2])

    check_parity(build, [X, MASK, normal(4)], "reduction")


def test_mask_of_inner_axis_agrees_with_tensorflow():
    def build(x):
        kept = tf.square(tf.boolean_mask(x[0], x[1], axis=1))
        return [tf.reduce_sum(kept), kept[:, 2], tf.gather(kept, [1, 0], axis=1)]

    check_parity(build, [normal(2, 6, 4), MASK], "reduction")


def test_cross_entropy_of_masked_positions_agrees_with_tensorflow():
    def build(x):
        labels, logits = tf.boolean_mask(x[2], x[1]), tf.boolean_mask(x[0], x[1])
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        return tf.reduce_mean(losses)

    check_parity(build, [X, MASK, integers(6, high=4)], "loss")


def test_positions_of_true_elements_agree_with_tensorflow():
    def build(x):
        return [tf.where(x[0] > 0), tf.gather_nd(x[0], tf.where(x[0] > 0))]

    check_parity(build, [X], "gather_scatter")


def test_unique_orders_values_by_first_appearance_as_tensorflow_does():
    check_parity(lambda x: list(tf.unique_with_counts(x[0])), [IDS], "gather_scatter")


def test_sums_of_rows_with_one_id_agree_with_tensorflow():
    """What sparse optimizers do with repeated rows."""

    def build(x):
        ids, positions = tf.unique(x[1])
        return [tf.math.unsorted_segment_sum(x[0], positions, tf.shape(ids)[0]), ids]

    check_parity(build, [X, IDS], "gather_scatter")


def test_range_up_to_a_computed_limit_agrees_with_tensorflow():
    def build(x):
        return tf.gather(x[0], tf.range(x[1]))

    check_parity(build, [X, np.array(3, "int32")], "gather_scatter")


def test_segments_and_partitions_agree_with_tensorflow():
    def build(x):
        parts = tf.dynamic_partition(x[0], x[1] % 2, 2)
        return [tf.math.segment_sum(x[0], [0, 0, 1, 1, 2, 2]), *parts]

    check_parity(build, [X, IDS], "gather_scatter")


def test_sequence_mask_of_computed_length_agrees_with_tensorflow():
    check_parity(lambda x: tf.sequence_mask(x[0], dtype="float32"), [IDS], "shape")


def test_rows_stitched_at_computed_positions_agree_with_tensorflow():
    """What a lookup in a table of several parts does."""

    def build(x):
        parts = tf.dynamic_partition(x[0], x[1] % 3, 3)
        places = tf.dynamic_partition(tf.range(6), x[1] % 3, 3)
        return tf.dynamic_stitch(places, [tf.square(part) for part in parts])

    check_parity(build, [X, IDS], "gather_scatter")
