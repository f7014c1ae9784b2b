"""Datasets of examples that are in memory, batched as a BatchPlan says.

What a batch holds is the caller's.
"""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from modelzoo.common.data.batch_plan import BatchPlan


def planned_batches(plan, assemble, columns, skip, batch_size=None, repeats=False):
    """Makes a dataset of batches that are assembled in Python.

    Args:
        plan: BatchPlan.
        assemble: function of the numbers of a batch's examples, int64 [B], and the length of its
            rows; returns the arrays of `columns` by name.
        columns: shape of an example's part and type, by name; None for a length that changes.
        skip: batches to leave out at the beginning.
        batch_size: B where all batches are of one size, None where the last may be smaller.
        repeats: whether epochs follow one another without end.

    Returns:
        A dataset of dictionaries of tensors [B, ...].
    """

    def arrays(number):
        made = assemble(*plan.batch(number))
        return [made[name] for name in columns]

    def batch(number):
        tensors = tf.numpy_function(arrays, [number], [dtype for _, dtype in columns.values()])
        for tensor, (shape, _) in zip(tensors, columns.values()):
            tensor.set_shape([batch_size, *shape])
        return dict(zip(columns, tensors))

    last = tf.int64.max if repeats else plan.batches_per_epoch
    return tf.data.Dataset.range(skip, last).map(batch).prefetch(4)


def predict_batches(section, lengths, assemble, columns, skip):
    """Makes the dataset of a prediction: every example once, in order.

    Args:
        section: an input section with `batch_size`, `buckets` and `max_sequence_length`.
        lengths: [number of examples] integers, tokens of each.
        assemble: see `planned_batches`.
        columns: see `planned_batches`.
        skip: see `planned_batches`.

    Returns:
        See `planned_batches`.
    """
    plan = BatchPlan(lengths, section.batch_size, row_lengths(section), seed=None, keep_rest=True)
    return planned_batches(plan, assemble, columns, skip)


def row_lengths(section):
    """Returns the lengths that the rows of a batch may have, ascending."""
    return [*(section.buckets or ()), section.max_sequence_length]


def row_shape(section):
    """Returns the shape of a row of tokens, as far as it is the same in all batches."""
    return [None if section.buckets else section.max_sequence_length]
