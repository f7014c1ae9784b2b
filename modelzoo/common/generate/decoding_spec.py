"""Predictions of a language model for decoding with a key-value cache, and for scoring.

Shapes: B batch, S new tokens, C cached positions, L layers, H heads, D head size, V vocabulary.
"""

import tensorflow.compat.v1 as tf

from modelzoo.common.layers.attention import KeyValueCache, cached_mask
from modelzoo.common.layers.lm_head import token_cross_entropy
from modelzoo.common.train.estimator import CSEstimatorSpec


def is_decoding(features):
    """Returns whether the features are those of decoding or scoring."""
    return "past" in features or "targets" in features


def decoding_spec(features, run):
    """Makes the predictions that the features ask for.

    Decoding: from ``input_ids`` [B, S], ``positions`` [B, S], ``past_lengths`` [B] and ``wanted``
    [B] int32, and the cache ``past`` [L, 2, B, H, C, D] float32. Predictions are ``logits`` [B, V]
    of the token ``wanted`` of each row, and the new keys and values ``present`` [L, 2, B, H, S, D].

    Scoring: from ``input_ids`` and ``targets`` [B, S] int32. Predictions are ``log_probs`` [B, S]
    float32 of the targets, and ``choices`` [B, S] int32, the likeliest tokens.

    Args:
        run: the model, as ``run(input_ids, cache=, positions=, mask=, wanted=)``.
    """
    predictions = _decode(features, run) if "past" in features else _score(features, run)
    return CSEstimatorSpec(mode=tf.estimator.ModeKeys.PREDICT, predictions=predictions)


def _decode(features, run):
    ids, past = features["input_ids"], features["past"]
    mask = cached_mask(features["past_lengths"], tf.shape(past)[4], tf.shape(ids)[1], tf.float32)
    cache = KeyValueCache(past)
    logits = run(
        ids, cache=cache, positions=features["positions"], mask=mask, wanted=features["wanted"]
    )
    return {"logits": logits, "present": tf.cast(cache.present(), tf.float32)}


def _score(features, run):
    targets = features["targets"]
    logits = run(features["input_ids"])
    shape = tf.shape(targets)
    log_probs = -token_cross_entropy(logits, targets)
    choices = tf.argmax(logits, axis=-1, output_type=tf.int32)
    return {"log_probs": tf.reshape(log_probs, shape), "choices": tf.reshape(choices, shape)}
