"""Runs metric pairs over batches of unequal size, as an evaluation does. Holds no tests."""

from __future__ import annotations

import numpy as np
import tensorflow.compat.v1 as tf

SIZES = (5, 1, 7, 4)
EXAMPLES = sum(SIZES)


def evaluate(metric_fn, *columns):
    """Feeds the columns, EXAMPLES rows each, batch by batch to a metric function.

    Returns:
        The final values by name; every update op's last result is checked to equal them.
    """
    columns = [np.asarray(column) for column in columns]
    with tf.Graph().as_default(), tf.Session() as session:
        feeds = [tf.placeholder(c.dtype, [None, *c.shape[1:]]) for c in columns]
        pairs = metric_fn(*feeds)
        values = {name: pair[0] for name, pair in pairs.items()}
        updates = {name: pair[1] for name, pair in pairs.items()}
        session.run(tf.local_variables_initializer())
        start = 0
        for size in SIZES:
            rows = {f: c[start : start + size] for f, c in zip(feeds, columns)}
            last, start = session.run(updates, rows), start + size
        results = session.run(values)
    assert start == EXAMPLES
    np.testing.assert_equal(last, results)
    return results
