"""Metrics of classifiers: accuracy, and for two classes F1 and the Matthews correlation.

They are TF1 metric pairs for host_call. B is the batch, C the number of classes.
"""

import math

import tensorflow.compat.v1 as tf

from modelzoo.common.metrics.streaming import streaming_accuracy, streaming_confusion


def next_sentence_metrics(labels, predictions):
    """Makes the accuracy of BERT's next sentence prediction.

    Args:
        labels: [B] or [B, 1] integers, 1 for a random second sentence.
        predictions: [B] integers, argmax of the logits.

    Returns:
        Pairs ``(value, update)`` by name: ``eval/accuracy_cls``.
    """
    return {"eval/accuracy_cls": streaming_accuracy(labels, predictions, None, "accuracy_cls")}


def classifier_metrics(labels, predictions, num_classes, is_matched=None):
    """Makes the metrics of a classifier, those of GLUE (Wang et al. 2018, section 3).

    Args:
        labels: [B] integers.
        predictions: [B] integers, argmax of the logits.
        num_classes: C. For two classes there are also F1 (of class 1) and Matthews correlation.
        is_matched: [B], 1 for an example of MNLI's matched part, 0 for the mismatched part, None
            for data without parts.

    Returns:
        Pairs ``(value, update)`` by name: ``eval/accuracy_cls``; ``eval/f1_score``, ``eval/mcc``;
        ``eval/accuracy_matched``, ``eval/accuracy_mismatched``, NaN for a part without examples.
    """
    pairs = {"eval/accuracy_cls": streaming_accuracy(labels, predictions, None, "accuracy_cls")}
    if is_matched is not None:
        matched = tf.cast(is_matched, tf.float32)
        parts = {"accuracy_matched": matched, "accuracy_mismatched": 1.0 - matched}
        for name, weights in parts.items():
            pairs[f"eval/{name}"] = streaming_accuracy(
                labels, predictions, weights, name, empty=math.nan
            )
    if num_classes == 2:
        counts, update = streaming_confusion(labels, predictions, None, 2, "confusion")
        pairs["eval/f1_score"] = (f1_of_class(counts)[1], f1_of_class(update)[1])
        pairs["eval/mcc"] = (matthews(counts), matthews(update))
    return pairs


def f1_of_class(counts):
    """Computes every class's F1, 2 TP / (2 TP + FP + FN) (van Rijsbergen 1979, chapter 7).

    Args:
        counts: [C, C] float64, rows are labels, columns predictions.

    Returns:
        [C] float32, 0 for a class without labels and predictions.
    """
    sizes = tf.reduce_sum(counts, axis=0) + tf.reduce_sum(counts, axis=1)
    return tf.cast(tf.div_no_nan(2.0 * tf.linalg.diag_part(counts), sizes), tf.float32)


def matthews(counts):
    """Computes Matthews correlation (Matthews 1975, equation 1).

    Args:
        counts: [2, 2] float64, rows are labels, columns predictions.

    Returns:
        A float32 scalar from -1 to 1, 0 if all labels or all predictions are equal.
    """
    rows, columns = tf.reduce_sum(counts, axis=1), tf.reduce_sum(counts, axis=0)
    determinant = counts[0, 0] * counts[1, 1] - counts[0, 1] * counts[1, 0]
    norm = tf.sqrt(rows[0]) * tf.sqrt(rows[1]) * tf.sqrt(columns[0]) * tf.sqrt(columns[1])
    return tf.cast(tf.div_no_nan(determinant, norm), tf.float32)
