"""BERT as a classifier of sentences and pairs, as a model_fn.

Source: Devlin et al. (2018), section 4.1. B batch, S sequence, N hidden size, C classes.
"""

from __future__ import annotations

import functools

import tensorflow.compat.v1 as tf

from modelzoo.bert.backbone import bert_encoder, initializer_of, pooled
from modelzoo.bert.fine_tuning.classifier.params import Params
from modelzoo.common import metrics
from modelzoo.common.config.params import params_from_dict
from modelzoo.common.layers.attention import dropout
from modelzoo.common.layers.dense import dense
from modelzoo.common.train.estimator import CSEstimatorSpec
from modelzoo.common.train.loss_spec import loss_spec

POOLER = "cls_layer/cls_dense/cls_dense/kernel"


def new_layers(params):
    """Returns what training from a pre-trained checkpoint begins anew, as parts of names.

    That is the output layer, and the layer before it where pre-training had no next sentences and
    the checkpoint does not hold it all the same, as one made of a BertModel does.
    """
    path = params.runconfig.checkpoint_path
    has_pooler = not params.model.disable_nsp or (
        path is not None
        and tf.train.checkpoint_exists(path)
        and tf.train.NewCheckpointReader(path).has_tensor(POOLER)
    )
    return ("cls_output_dense",) if has_pooler else ("cls_layer",)


WARM_START_EXCLUDES = new_layers


def model_fn(features, labels, mode, params):
    """Builds the graph of training, evaluation or prediction.

    Args:
        features: ``input_ids``, ``input_mask`` (1 where there is padding) and ``segment_ids``
            [B, S] int32; in evaluation of MNLI ``is_matched`` [B]; in prediction
            ``example_index`` [B].
        labels: [B] int32; None in prediction.
        mode: a ``tf.estimator.ModeKeys``.
        params: nested dictionary of the YAML's sections.

    Returns:
        A CSEstimatorSpec. Predictions are ``label`` [B] int32, ``probabilities`` [B, C] float32
        and ``example_index`` [B] int32.
    """
    params = params_from_dict(Params, params)
    training = mode == tf.estimator.ModeKeys.TRAIN
    logits = classifier_logits(features, params, training)  # (B, C)
    choices = tf.argmax(logits, axis=-1, output_type=tf.int32)  # (B,)
    if mode == tf.estimator.ModeKeys.PREDICT:
        predictions = {"label": choices, "probabilities": tf.nn.softmax(logits)}
        predictions["example_index"] = tf.identity(features["example_index"])
        return CSEstimatorSpec(mode=mode, predictions=predictions)

    cross_entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    loss = tf.reduce_mean(cross_entropy)

    def class_metrics():
        matched = [features["is_matched"]] if "is_matched" in features else []
        metric_fn = functools.partial(_metrics, num_classes=params.model.num_cls_classes)
        return metric_fn, [labels, choices, *matched]

    return loss_spec(mode, params, [(loss, tf.shape(labels)[0])], class_metrics)


def classifier_logits(features, params, training):
    """Runs the model.

    Variables of the head: ``cls_layer/cls_dense/...`` and ``cls_layer/cls_output_dense/...``.

    Args:
        features: as in `model_fn`.
        params: Params.
        training: whether dropout applies.

    Returns:
        Logits [B, C] of float32.
    """
    model = params.model
    longest = params.max_position_embeddings
    hidden, _ = bert_encoder(features, model, params.vocab_size, longest, training)
    x = pooled(hidden, model)  # (B, N)
    x = dropout(x, model.cls_dropout_rate, training, model.dropout_seed)
    seed = model.weight_initialization_seed
    with tf.variable_scope("cls_layer"):
        name = "cls_output_dense"
        logits = dense(x, model.num_cls_classes, name, initializer_of(model), seed=seed)
    return tf.cast(logits, tf.float32)


def _metrics(labels, predictions, is_matched=None, *, num_classes):
    return metrics.classifier_metrics(labels, predictions, num_classes, is_matched)
