"""Sums and means over the whole evaluation set, as TF1 metric pairs ``(value, update)``.

They are accumulated in float64 on the host, because float32 cannot count beyond 16,777,216.
"""

import tensorflow.compat.v1 as tf


def streaming_sum(values, name):
    """Adds up tensors over batches.

    Args:
        values: a batch's summand, a tensor of static shape and any numeric dtype.

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

    Both are updated together: a count that does not depend on the batch would otherwise be updated
    at the end of the input.

    Args:
        empty: value if the denominator is 0.

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
        weights: as many numbers; None for 1.
        empty: value if the weights are 0.
    """
    values = flat(values, tf.float64)
    weights = tf.ones_like(values) if weights is None else flat(weights, tf.float64)
    return streaming_ratio(tf.reduce_sum(values * weights), tf.reduce_sum(weights), name, empty)


def streaming_accuracy(labels, predictions, weights, name, empty=0.0):
    """Makes the weighted accuracy of integers of any shape; see `streaming_mean`."""
    hits = tf.equal(flat(labels, tf.int64), flat(predictions, tf.int64))
    return streaming_mean(hits, weights, name, empty)


def streaming_confusion(labels, predictions, weights, num_classes, name):
    """Makes the weighted confusion matrix of integers below C = `num_classes`, of any shape.

    Returns a pair of float64 [C, C]: rows are labels, columns predictions.
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
