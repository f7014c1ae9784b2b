"""Mean ROUGE of summaries during evaluation, as TF1 metric pairs."""

import itertools

import numpy as np
import tensorflow.compat.v1 as tf

from modelzoo.common.metrics.rouge import ROUGE_FIELDS, rouge
from modelzoo.common.metrics.streaming import streaming_sum


def rouge_metrics(summaries, tensors):
    """Makes the mean precision, recall and F1 of ROUGE over all examples.

    Args:
        summaries: function of the tensors as NumPy arrays, run on the host; returns a list with
            a pair (prediction, reference) for each example, each a list of sentences, each a list
            of tokens (str or int).

    Returns:
        Pairs ``(value, update)`` by name: ``eval/rouge1-precision``, ``eval/rouge1-recall``,
        ``eval/rouge1-f1_score``, and the same of ``rouge2``, ``rougeL`` and ``rougeLsum``.
    """

    def sums(*arrays):
        rows = [list(itertools.chain(*rouge(*pair).values())) for pair in summaries(*arrays)]
        return np.append(np.sum(rows, axis=0), len(rows)) if rows else np.zeros(width)

    width = len(ROUGE_FIELDS) + 1
    totals = tf.numpy_function(sums, tensors, tf.float64)
    totals.set_shape([width])
    value, update = (
        tf.cast(tf.div_no_nan(counts[:-1], counts[-1]), tf.float32)
        for counts in streaming_sum(totals, "rouge")
    )
    return {f"eval/{name}": (value[i], update[i]) for i, name in enumerate(ROUGE_FIELDS)}
