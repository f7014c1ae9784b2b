"""What a model_fn predicts for a driver that feeds it token by token, or asks for probabilities.

``cached_decoder.py`` and ``modelzoo/common/evaluate`` drive it.

Shapes: B batch, S new tokens, C cached positions, L layers, H heads, D head size, V vocabulary.
"""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from modelzoo.common.layers.attention import KeyValueCache, cached_mask
from modelzoo.common.layers.lm_head import token_cross_entropy
from modelzoo.common.train.estimator import CSEstimatorSpec


def is_driven(features):
    """Returns whether features come from a driver of this package."""
    return "past" in features or "targets" in features


def driven_spec(features, run):
    """Makes the predictions that a driver asks for by the features it feeds.

    Either of ``input_ids`` [B, S], ``positions`` [B, S], ``past_lengths`` [B], ``wanted`` [B], all
    int32, and ``past`` [L, 2, B, H, C, D] float32: then ``logits`` [B, V] of the wanted token of
    each row, and ``present`` [L, 2, B, H, S, D], the new keys and values. Or of ``input_ids`` and
    ``targets`` [B, S] int32: then ``log_probs`` [B, S] float32 of the targets and ``choices``
    [B, S] int32, the likeliest tokens there.

    Args:
        features: dictionary of tensors.
        run: the model, as ``run(input_ids, cache=, positions=, mask=, wanted=)``.

    Returns:
        A CSEstimatorSpec.
    """
    predictions = _decoded(features, run) if "past" in features else _scored(features, run)
    return CSEstimatorSpec(mode=tf.estimator.ModeKeys.PREDICT, predictions=predictions)


def _decoded(features, run):
    ids, past = features["input_ids"], features["past"]
    mask = cached_mask(features["past_lengths"], tf.shape(past)[4], tf.shape(ids)[1], tf.float32)
    cache = KeyValueCache(past)
    logits = run(
        ids, cache=cache, positions=features["positions"], mask=mask, wanted=features["wanted"]
    )
    return {"logits": logits, "present": tf.cast(cache.present(), tf.float32)}


def _scored(features, run):
    targets = features["targets"]
    logits = run(features["input_ids"])
    shape = tf.shape(targets)
    log_probs = -token_cross_entropy(logits, targets)
    choices = tf.argmax(logits, axis=-1, output_type=tf.int32)
    return {"log_probs": tf.reshape(log_probs, shape), "choices": tf.reshape(choices, shape)}
