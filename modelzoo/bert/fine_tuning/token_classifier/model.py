"""BERT as a tagger of tokens, as a model_fn.

Source: Devlin et al. (2018), section 5.3. B batch, S sequence, N hidden size, C labels.
"""

from __future__ import annotations

import functools
import os

import tensorflow.compat.v1 as tf

from cerebras_tf.errors import ConfigError
from modelzoo.bert.backbone import bert_encoder, initializer_of
from modelzoo.bert.fine_tuning.token_classifier.data import check_label_names
from modelzoo.bert.fine_tuning.token_classifier.labels import read_label_names, require_same_labels
from modelzoo.bert.fine_tuning.token_classifier.params import Params
from modelzoo.common import metrics
from modelzoo.common.config.params import params_from_dict
from modelzoo.common.layers.attention import dropout
from modelzoo.common.layers.dense import dense
from modelzoo.common.train.estimator import CSEstimatorSpec
from modelzoo.common.train.loss_spec import loss_spec

WARM_START_EXCLUDES = ("output_logits",)
INPUT_SECTIONS = {
    tf.estimator.ModeKeys.TRAIN: "train_input",
    tf.estimator.ModeKeys.EVAL: "eval_input",
    tf.estimator.ModeKeys.PREDICT: "predict_input",
}


def model_fn(features, labels, mode, params):
    """Builds the graph of training, evaluation or prediction.

    Args:
        features: ``input_ids``, ``input_mask`` (1 where there is padding) and ``segment_ids``
            [B, S] int32; in prediction also ``sentence_ids`` [B, 1] and ``word_ids`` [B, S].
        labels: [B, S] int32; None in prediction.
        mode: a ``tf.estimator.ModeKeys``.
        params: nested dictionary of the YAML's sections.

    Returns:
        A CSEstimatorSpec. Predictions are ``label_ids`` [B, S] int32, and ``sentence_ids`` and
        ``word_ids`` as given.
    """
    params = params_from_dict(Params, params)
    model = params.model
    training = mode == tf.estimator.ModeKeys.TRAIN
    check_labels(params, INPUT_SECTIONS[mode])
    logits = token_logits(features, params, training)  # (B, S, C)
    choices = tf.argmax(logits, axis=-1, output_type=tf.int32)  # (B, S)
    if mode == tf.estimator.ModeKeys.PREDICT:
        places = {name: tf.identity(features[name]) for name in ("sentence_ids", "word_ids")}
        return CSEstimatorSpec(mode=mode, predictions={"label_ids": choices, **places})

    weights = 1.0 - tf.cast(features["input_mask"], tf.float32)  # (B, S)
    loss = token_loss(logits, labels, weights, model)

    def label_metrics():
        path = params.eval_input.label_vocab_file
        # Without data the model is only compiled; evaluation has asked for the file before.
        unknown = [f"B-{number}" for number in range(model.num_classes)]
        names = read_label_names(path) if os.path.exists(path) else unknown
        metric_fn = functools.partial(metrics.token_classification_metrics, label_names=names)
        return metric_fn, [labels, choices, weights]

    count = tf.size(labels) if model.include_padding_in_loss else tf.shape(labels)[0]
    return loss_spec(mode, params, [(loss, count)], label_metrics)


def token_logits(features, params, training):
    """Runs the model.

    Variables of the head: ``output_logits/output_logits/...``.

    Args:
        features: as in `model_fn`.
        params: Params.
        training: whether dropout applies.

    Returns:
        Logits [B, S, C] of float32.
    """
    model = params.model
    longest = params.max_position_embeddings
    x, _ = bert_encoder(features, model, params.vocab_size, longest, training)
    x = dropout(x, model.encoder_output_dropout_rate, training, model.dropout_seed)
    seed = model.weight_initialization_seed
    logits = dense(x, model.num_classes, "output_logits", initializer_of(model), seed=seed)
    return tf.cast(logits, tf.float32)


def token_loss(logits, labels, weights, model):
    """Computes the loss that `include_padding_in_loss` names.

    Args:
        logits: [B, S, C] float32.
        labels: [B, S] int32.
        weights: [B, S] float32, 0 where there is padding.
        model: TokenClassifierModelParams.

    Returns:
        A float32 scalar.
    """
    costs = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)  # (B, S)
    if model.include_padding_in_loss:
        return tf.reduce_mean(costs)
    batch_size = tf.cast(tf.shape(labels)[0], tf.float32)
    return tf.reduce_sum(costs * weights) * model.loss_weight / batch_size


def check_labels(params, used):
    """Compares model.num_classes and training's labels with those of the section in use.

    A label_vocab_file that is not there counts for nothing.

    Args:
        params: Params.
        used: name of the section.

    Raises:
        ConfigError: if they differ.
    """
    train, section = params.train_input, getattr(params, used)
    if section is None or not os.path.exists(section.label_vocab_file):
        return
    path, names = section.label_vocab_file, read_label_names(section.label_vocab_file)
    if os.path.exists(train.label_vocab_file):
        require_same_labels(path, names, train.label_vocab_file, check_label_names(train))
    if len(names) != params.model.num_classes:
        raise ConfigError(
            f"model.num_classes: must be {len(names)}, the labels of {path}: {', '.join(names)}. "
            f"Received: {params.model.num_classes}. Set it to that."
        )
