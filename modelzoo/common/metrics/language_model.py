"""Language model metrics, kept as sums over the whole evaluation set.

They are TF1 metric pairs ``(value, update)``, for host_call and eval_metric_ops alike. T is the
number of tokens of a batch.
"""

import math

import tensorflow.compat.v1 as tf

from modelzoo.common.metrics.streaming import flat, streaming_accuracy, streaming_mean

LARGEST_EXPONENT = 100.0


def perplexity(loss):
    """exp(loss), its argument at most LARGEST_EXPONENT."""
    return tf.exp(tf.minimum(loss, LARGEST_EXPONENT))


def bits_per_byte(loss, ratio):
    """Nats per token to bits per byte: loss / ln 2 * tokens per byte."""
    return loss * (ratio / math.log(2.0))


def lm_metrics(labels, predictions, cross_entropy, weights, ratio):
    """Makes the metrics of a language model.

    Args:
        labels: [T] int32.
        predictions: [T] int32, the likeliest tokens.
        cross_entropy: [T] float32, -log p(label).
        weights: [T] float32, 1 for a token, 0 for padding.
        ratio: tokens per byte, None if unknown: then without bits per byte.

    Returns:
        Pairs ``(value, update)`` by name.
    """
    loss, update = streaming_mean(cross_entropy, weights, "lm_loss")
    found = {
        "eval/accuracy": streaming_accuracy(labels, predictions, weights, "accuracy"),
        "eval/lm_perplexity": (perplexity(loss), perplexity(update)),
    }
    if ratio is not None:
        pair = (bits_per_byte(loss, ratio), bits_per_byte(update, ratio))
        found["eval/bits_per_byte"] = pair
    return found


def masked_lm_metrics(labels, predictions, cross_entropy, weights):
    """Makes the metrics of a masked language model.

    Every masked token counts once, also if the weights of a batch are scaled.

    Args:
        labels: [T] integers, the tokens that were masked.
        predictions: [T] integers, the likeliest tokens.
        cross_entropy: [T], -log p(label).
        weights: [T], above 0 for a masked token, 0 for the padding of the list of positions.

    Returns:
        Pairs ``(value, update)`` by name: ``eval/accuracy_masked_lm``, ``eval/mlm_perplexity``.
    """
    counts = tf.greater(flat(weights, tf.float32), 0.0)
    loss, update = streaming_mean(cross_entropy, counts, "mlm_loss")
    accuracy = streaming_accuracy(labels, predictions, counts, "accuracy_masked_lm")
    return {
        "eval/accuracy_masked_lm": accuracy,
        "eval/mlm_perplexity": (perplexity(loss), perplexity(update)),
    }


def seq2seq_lm_metrics(labels, predictions, cross_entropy, weights):
    """Makes the metrics of a decoder with teacher forcing.

    Args:
        labels: [T] integers, the next tokens.
        predictions: [T] integers, the likeliest tokens.
        cross_entropy: [T], -log p(label), without label smoothing.
        weights: [T], above 0 for a token, 0 for padding.

    Returns:
        Pairs ``(value, update)`` by name: ``eval/accuracy_lm``, ``eval/perplexity_lm``.
    """
    counts = tf.greater(flat(weights, tf.float32), 0.0)
    loss, update = streaming_mean(cross_entropy, counts, "lm_loss")
    return {
        "eval/accuracy_lm": streaming_accuracy(labels, predictions, counts, "accuracy_lm"),
        "eval/perplexity_lm": (perplexity(loss), perplexity(update)),
    }
