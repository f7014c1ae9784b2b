"""Sums and means over the whole evaluation set, as TF1 metric pairs ``(value, update)``.

They are kept in float64 on the host, whatever the model computes in: float16 ends at 65,504 tokens
and float32 no longer counts by ones after 16,777,216.
"""

from __future__ import annotations

import tensorflow.compat.v1 as tf


def streaming_sum(values, name):
    """Adds up tensors over batches.

    Args:
        values: what a batch adds, a tensor of static shape and any numeric dtype.
        name: of the variable, which lies in LOCAL_VARIABLES and METRIC_VARIABLES.

    Returns:
        A pair: the sum so far and the op that adds this batch, both float64 of that shape.
    """
    values = tf.cast(values, tf.float64)
    zeros = tf.zeros(values.shape, tf.float64)
    total = tf.Variable(
        zeros,
        trainable=False,
        collections=[tf.GraphKeys.LOCAL_VARIABLES, tf.GraphKeys.METRIC_VARIABLES],
        name=name,
        use_resource=True,
    )
    return total.read_value(), total.assign_add(values, read_value=True)


def streaming_ratio(numerator, denominator, name, empty=0.0):
    """Divides one streaming sum by another.

    Neither grows without the other: a count that needs nothing of the batch would still grow at
    the end of the input, in the step that finds no batch.

    Args:
        numerator: what a batch adds above the line, of static shape.
        denominator: what it adds below, of the same shape.
        name: of the two variables.
        empty: the value where nothing has been counted.

    Returns:
        A metric pair of float32.
    """
    with tf.control_dependencies([numerator, denominator]):
        numerator, denominator = tf.identity(numerator), tf.identity(denominator)
    above, add_above = streaming_sum(numerator, f"{name}/total")
    below, add_below = streaming_sum(denominator, f"{name}/count")
    return _divided(above, below, empty), _divided(add_above, add_below, empty)


def _divided(above, below, empty):
    ratio = tf.div_no_nan(above, below)
    if empty:
        ratio = tf.where(
            tf.equal(below, 0.0), tf.fill(tf.shape(below), tf.cast(empty, tf.float64)), ratio
        )
    return tf.cast(ratio, tf.float32)


def streaming_mean(values, weights, name, empty=0.0):
    """Makes the weighted mean of all values of all batches.

    Args:
        values: any shape, any numeric dtype or bool.
        weights: as many numbers; None counts every value once.
        name: of the two variables.
        empty: the value where nothing has been counted.

    Returns:
        A metric pair of float32 scalars.
    """
    values = flat(values, tf.float64)
    weights = tf.ones_like(values) if weights is None else flat(weights, tf.float64)
    return streaming_ratio(tf.reduce_sum(values * weights), tf.reduce_sum(weights), name, empty)


def streaming_accuracy(labels, predictions, weights, name, empty=0.0):
    """Makes the weighted share of predictions that equal their label.

    Args:
        labels: any shape, integers.
        predictions: as many integers.
        weights: as many numbers; None counts every prediction once.
        name: of the two variables.
        empty: the value where nothing has been counted.

    Returns:
        A metric pair of float32 scalars.
    """
    hits = tf.equal(flat(labels, tf.int64), flat(predictions, tf.int64))
    return streaming_mean(hits, weights, name, empty)


def streaming_confusion(labels, predictions, weights, num_classes, name):
    """Counts every pair of label and prediction.

    Args:
        labels: any shape, integers from 0 to C - 1.
        predictions: as many integers of the same range.
        weights: as many numbers; None counts every prediction once.
        num_classes: C.
        name: of the variable.

    Returns:
        A pair of float64 [C, C]: rows are labels, columns predictions.
    """
    counts = tf.math.confusion_matrix(
        flat(labels, tf.int64),
        flat(predictions, tf.int64),
        num_classes,
        dtype=tf.float64,
        weights=None if weights is None else flat(weights, tf.float64),
    )
    counts.set_shape([num_classes, num_classes])
    return streaming_sum(counts, name)


def flat(tensor, dtype):
    """Returns `tensor` as one row of `dtype`."""
    return tf.reshape(tf.cast(tensor, dtype), [-1])
