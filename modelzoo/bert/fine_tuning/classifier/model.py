"""Classification of sentences and pairs (Devlin et al. 2018, section 4.1). C classes."""

import functools

import tensorflow.compat.v1 as tf

from modelzoo.bert.backbone import pooled
from modelzoo.bert.fine_tuning.classifier.data import PROCESSORS
from modelzoo.bert.fine_tuning.classifier.params import Params
from modelzoo.bert.fine_tuning.model import FineTuning, head_dense
from modelzoo.common import metrics
from modelzoo.common.fine_tuning.glue_predictions import write_predictions
from modelzoo.common.layers.attention import dropout

POOLER = "cls_layer/cls_dense/cls_dense/kernel"


class Classifier(FineTuning):
    """The pooled first token and a dense layer.

    Variables ``cls_layer/cls_dense/...`` and ``cls_layer/cls_output_dense/...``. Logits are [B, C],
    labels [B] int32. Predictions are ``label`` [B] int32, ``probabilities`` [B, C] float32 and
    ``example_index`` [B].
    """

    params_class = Params
    processors = PROCESSORS
    row_ids = ("example_index",)
    write_predictions = staticmethod(write_predictions)

    def WARM_START_EXCLUDES(self, params):
        """Returns the output layer, and the pooler where the pre-trained checkpoint has none.

        A checkpoint of a pre-training without next sentences has none, unless it was converted from
        a model with a pooler.
        """
        path = params.runconfig.checkpoint_path
        has_pooler = not params.model.disable_nsp or (
            path is not None
            and tf.train.checkpoint_exists(path)
            and tf.train.NewCheckpointReader(path).has_tensor(POOLER)
        )
        return ("cls_output_dense",) if has_pooler else ("cls_layer",)

    def logits(self, hidden, features, model, training):
        x = dropout(pooled(hidden, model), model.cls_dropout_rate, training, model.dropout_seed)
        with tf.variable_scope("cls_layer"):
            return head_dense(x, model.num_cls_classes, "cls_output_dense", model)

    def loss(self, logits, labels, features, model):
        costs = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        return tf.reduce_mean(costs), tf.shape(labels)[0]

    def metrics(self, logits, labels, features, params):
        matched = [features["is_matched"]] if "is_matched" in features else []
        metric_fn = functools.partial(_metrics, num_classes=params.model.num_cls_classes)
        return metric_fn, [labels, _likeliest(logits), *matched]

    def predictions(self, logits):
        return {"label": _likeliest(logits), "probabilities": tf.nn.softmax(logits)}


def _likeliest(logits):
    return tf.argmax(logits, axis=-1, output_type=tf.int32)


def _metrics(labels, predictions, is_matched=None, *, num_classes):
    return metrics.classifier_metrics(labels, predictions, num_classes, is_matched)
