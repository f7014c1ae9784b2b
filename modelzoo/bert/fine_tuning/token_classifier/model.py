"""Classification of tokens (Devlin et al. 2018, section 5.3). C labels."""

import functools
import os

import tensorflow.compat.v1 as tf

from cerebras_tf.errors import ConfigError
from modelzoo.bert.fine_tuning.model import FineTuning, head_dense
from modelzoo.bert.fine_tuning.token_classifier.data import NerDataProcessor, check_label_names
from modelzoo.bert.fine_tuning.token_classifier.params import Params
from modelzoo.common import metrics
from modelzoo.common.fine_tuning.tag_labels import read_label_names, require_same_labels
from modelzoo.common.fine_tuning.tag_predictions import write_predictions
from modelzoo.common.layers.attention import dropout

INPUT_SECTIONS = {
    tf.estimator.ModeKeys.TRAIN: "train_input",
    tf.estimator.ModeKeys.EVAL: "eval_input",
    tf.estimator.ModeKeys.PREDICT: "predict_input",
}


class TokenClassifier(FineTuning):
    """A dense layer on every token.

    Variables ``output_logits/output_logits/...``. Logits are [B, S, C], labels [B, S] int32.
    Predictions are ``label_ids`` [B, S] int32, ``sentence_ids`` and ``word_ids``.
    """

    params_class = Params
    processors = {"NerDataProcessor": NerDataProcessor}
    new_layers = ("output_logits",)
    row_ids = ("sentence_ids", "word_ids")
    write_predictions = staticmethod(write_predictions)

    def check(self, params, mode):
        """Raises a ConfigError if the label files do not fit the model; see `check_labels`."""
        check_labels(params, INPUT_SECTIONS[mode])

    def logits(self, hidden, features, model, training):
        x = dropout(hidden, model.encoder_output_dropout_rate, training, model.dropout_seed)
        return head_dense(x, model.num_classes, "output_logits", model)

    def loss(self, logits, labels, features, model):
        cost = token_loss(logits, labels, _weights(features), model)
        return cost, tf.size(labels) if model.include_padding_in_loss else tf.shape(labels)[0]

    def metrics(self, logits, labels, features, params):
        path = params.eval_input.label_vocab_file
        # A model without data is only compiled; an evaluation has checked the file before.
        unknown = [f"B-{number}" for number in range(params.model.num_classes)]
        names = read_label_names(path) if os.path.exists(path) else unknown
        metric_fn = functools.partial(metrics.token_classification_metrics, label_names=names)
        return metric_fn, [labels, _likeliest(logits), _weights(features)]

    def predictions(self, logits):
        return {"label_ids": _likeliest(logits)}


def _likeliest(logits):
    return tf.argmax(logits, axis=-1, output_type=tf.int32)


def _weights(features):
    return 1.0 - tf.cast(features["input_mask"], tf.float32)  # (B, S)


def token_loss(logits, labels, weights, model):
    """Computes the loss that `include_padding_in_loss` selects.

    Args:
        logits: [B, S, C] float32.
        labels: [B, S] int32.
        weights: [B, S] float32, 0 for padding.

    Returns:
        A float32 scalar.
    """
    costs = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)  # (B, S)
    if model.include_padding_in_loss:
        return tf.reduce_mean(costs)
    batch_size = tf.cast(tf.shape(labels)[0], tf.float32)
    return tf.reduce_sum(costs * weights) * model.loss_weight / batch_size


def check_labels(params, used):
    """Compares model.num_classes and the training labels with the labels of a section.

    A label_vocab_file that does not exist is skipped.
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
            f"Received: {params.model.num_classes}. Set it to {len(names)}."
        )
