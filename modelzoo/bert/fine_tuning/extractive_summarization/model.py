"""BERT that picks the sentences of a summary, as a model_fn.

Source: Liu, Fine-tune BERT for Extractive Summarization (2019), section 2.2 (simple classifier).
B batch, S sequence, C sentences, N hidden size.
"""

from __future__ import annotations

import functools

import tensorflow.compat.v1 as tf

from modelzoo.bert.backbone import bert_encoder, initializer_of
from modelzoo.bert.fine_tuning.extractive_summarization.params import Params
from modelzoo.bert.fine_tuning.extractive_summarization.selection import summaries
from modelzoo.common import metrics
from modelzoo.common.config.params import params_from_dict
from modelzoo.common.layers.dense import dense
from modelzoo.common.train.estimator import CSEstimatorSpec
from modelzoo.common.train.loss_spec import loss_spec

WARM_START_EXCLUDES = ("multiple_cls_layer",)


def model_fn(features, labels, mode, params):
    """Builds the graph of training, evaluation or prediction.

    Args:
        features: ``input_ids``, ``input_mask`` (1 where there is padding) and ``segment_ids``
            [B, S] int32; ``cls_indices`` [B, C] int32, ``cls_weights`` [B, C] float32; evaluation
            may have ``highlight_ids`` [B, H], prediction has ``article_ids`` [B, 1].
        labels: [B, C] int32, 1 for a sentence of the summary; None in prediction.
        mode: a ``tf.estimator.ModeKeys``.
        params: nested dictionary of the YAML's sections.

    Returns:
        A CSEstimatorSpec. Predictions are ``article_ids`` [B, 1] int32 and ``probabilities``
        [B, C] float32.
    """
    params = params_from_dict(Params, params)
    model = params.model
    training = mode == tf.estimator.ModeKeys.TRAIN
    logits = sentence_logits(features, params, training)  # (B, C)
    probabilities = tf.sigmoid(logits)
    if mode == tf.estimator.ModeKeys.PREDICT:
        numbers = tf.identity(features["article_ids"])
        predictions = {"article_ids": numbers, "probabilities": probabilities}
        return CSEstimatorSpec(mode=mode, predictions=predictions)

    loss = sentence_loss(logits, labels, features["cls_weights"], model.loss_weight)

    def summary_metrics():
        section = params.eval_input
        tensors = [features[name] for name in ("input_ids", "cls_indices", "cls_weights")]
        tensors += [labels, probabilities]
        tensors += [features["highlight_ids"]] if "highlight_ids" in features else []
        return functools.partial(_metrics, sep_id=section.sep_id, top_k=section.top_k), tensors

    return loss_spec(mode, params, [(loss, tf.shape(labels)[0])], summary_metrics)


def sentence_logits(features, params, training):
    """Runs the model.

    Variables of the head: ``multiple_cls_layer/multiple_cls_layer/...``.

    Args:
        features: as in `model_fn`.
        params: Params.
        training: whether dropout applies.

    Returns:
        Logits [B, C] of float32.
    """
    model = params.model
    longest = params.max_position_embeddings
    x, _ = bert_encoder(features, model, params.vocab_size, longest, training)
    rows = tf.gather(x, features["cls_indices"], batch_dims=1)  # (B, C, N)
    seed = model.weight_initialization_seed
    logits = dense(rows, 1, "multiple_cls_layer", initializer_of(model), seed=seed)  # (B, C, 1)
    return tf.cast(logits[:, :, 0], tf.float32)


def sentence_loss(logits, labels, weights, loss_weight):
    """Sums the cross entropy of all sentences and divides by the batch size.

    Each sentence has two classes, the logit of the first being zero.

    Args:
        logits: [B, C] float32.
        labels: [B, C] int32.
        weights: [B, C] float32, 0 where there is no sentence.
        loss_weight: a factor.

    Returns:
        A float32 scalar.
    """
    pairs = tf.stack([tf.zeros_like(logits), logits], axis=-1)  # (B, C, 2)
    costs = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=pairs)  # (B, C)
    batch_size = tf.cast(tf.shape(labels)[0], tf.float32)
    return tf.reduce_sum(costs * weights) * loss_weight / batch_size


def _metrics(*tensors, sep_id, top_k):
    chosen = functools.partial(summaries, sep_id=sep_id, top_k=top_k)
    return metrics.rouge_metrics(chosen, list(tensors))
