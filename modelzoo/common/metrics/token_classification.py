"""Metrics of token classifiers: F1 of tokens and of whole entities.

They are TF1 metric pairs; entities.py has the rules for entities. B batch, S sequence, C number of
labels.
"""

import functools

import numpy as np
import tensorflow.compat.v1 as tf

from modelzoo.common.metrics.classification import f1_of_class
from modelzoo.common.metrics.entities import entity_counts
from modelzoo.common.metrics.streaming import streaming_confusion, streaming_sum


def token_classification_metrics(labels, predictions, weights, label_names):
    """Makes the metrics of a token classifier.

    Of tokens: the macro and micro F1 of all labels that start with B or I. Of entities: precision,
    recall and F1 of equal span and type, without tokens whose true label is not a tag (``X`` and
    special tokens).

    Args:
        labels: [B, S] integers.
        predictions: [B, S] integers, argmax of the logits.
        weights: [B, S], 1 for a token, 0 for padding.
        label_names: C str in the order of the numbers, such as ``B``, ``I-Disease``, ``O``, ``X``.

    Returns:
        Pairs ``(value, update)`` by name: ``eval/token_level_macro_f1``,
        ``eval/token_level_micro_f1``, ``eval/entity_precision``, ``eval/entity_recall``,
        ``eval/entity_f1``.
    """
    wanted = [place for place, name in enumerate(label_names) if name.startswith(("B", "I"))]
    confusion = streaming_confusion(labels, predictions, weights, len(label_names), "token_counts")
    scores = zip(*(_token_f1(counts, wanted) for counts in confusion))
    pairs = {f"eval/token_level_{name}_f1": pair for name, pair in zip(("macro", "micro"), scores)}

    count = functools.partial(_count_entities, label_names=list(label_names))
    counts = tf.numpy_function(count, [labels, predictions, weights], tf.int64)
    counts.set_shape([3])
    entities = streaming_sum(counts, "entity_counts")
    scores = zip(*(_precision_recall_f1(counts) for counts in entities))
    names = ("entity_precision", "entity_recall", "entity_f1")
    pairs.update({f"eval/{name}": pair for name, pair in zip(names, scores)})
    return pairs


def _token_f1(counts, wanted):
    macro = tf.reduce_mean(tf.gather(f1_of_class(counts), wanted))
    hits = tf.reduce_sum(tf.gather(tf.linalg.diag_part(counts), wanted))
    sizes = tf.reduce_sum(counts, axis=0) + tf.reduce_sum(counts, axis=1)
    return macro, _quotient(2.0 * hits, tf.reduce_sum(tf.gather(sizes, wanted)))


def _precision_recall_f1(counts):
    found, predicted, true = tf.unstack(counts)
    return (
        _quotient(found, predicted),
        _quotient(found, true),
        _quotient(2.0 * found, predicted + true),
    )


def _quotient(above, below):
    return tf.cast(tf.div_no_nan(above, below), tf.float32)


def _count_entities(labels, predictions, weights, label_names):
    is_tag = np.array([name.partition("-")[0] in ("B", "I", "O") for name in label_names])
    kept = (weights > 0) & is_tag[labels]
    total = np.zeros(3, np.int64)
    for row in range(len(labels)):
        true, predicted = (
            [label_names[number] for number in tensor[row][kept[row]]]
            for tensor in (labels, predictions)
        )
        total += entity_counts(true, predicted)
    return total
