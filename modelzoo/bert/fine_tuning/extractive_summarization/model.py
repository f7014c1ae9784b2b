"""Selection of the sentences of a summary: BERTSUM with a simple classifier.

Source: Liu, Fine-tune BERT for Extractive Summarization (2019), section 2.2. C sentences.
"""

import functools

import tensorflow.compat.v1 as tf

from modelzoo.bert.fine_tuning.extractive_summarization.data import BertSumTfRecordsProcessor
from modelzoo.bert.fine_tuning.extractive_summarization.params import Params
from modelzoo.bert.fine_tuning.model import FineTuning, head_dense
from modelzoo.common import metrics
from modelzoo.common.fine_tuning.selection import summaries
from modelzoo.common.fine_tuning.summary_predictions import write_predictions


class ExtractiveSummarization(FineTuning):
    """A dense layer on the [CLS] of every sentence.

    Variables ``multiple_cls_layer/multiple_cls_layer/...``. Logits are [B, C], labels [B, C] int32,
    1 for a sentence of the summary. Predictions are ``probabilities`` [B, C] float32 and
    ``article_ids`` [B, 1] int32.
    """

    params_class = Params
    processors = {"BertSumTfRecordsProcessor": BertSumTfRecordsProcessor}
    new_layers = ("multiple_cls_layer",)
    row_ids = ("article_ids",)
    write_predictions = staticmethod(write_predictions)

    def logits(self, hidden, features, model, training):
        rows = tf.gather(hidden, features["cls_indices"], batch_dims=1)  # (B, C, N)
        return head_dense(rows, 1, "multiple_cls_layer", model)[:, :, 0]

    def loss(self, logits, labels, features, model):
        cost = sentence_loss(logits, labels, features["cls_weights"], model.loss_weight)
        return cost, tf.shape(labels)[0]

    def metrics(self, logits, labels, features, params):
        section = params.eval_input
        tensors = [features[name] for name in ("input_ids", "cls_indices", "cls_weights")]
        tensors += [labels, tf.sigmoid(logits)]
        tensors += [features["highlight_ids"]] if "highlight_ids" in features else []
        return functools.partial(_metrics, sep_id=section.sep_id, top_k=section.top_k), tensors

    def predictions(self, logits):
        return {"probabilities": tf.sigmoid(logits)}


def sentence_loss(logits, labels, weights, loss_weight):
    """Sums the cross entropy of all sentences and divides by the batch size.

    Each sentence has two classes, and the logit of the first one is zero.

    Args:
        logits: [B, C] float32.
        labels: [B, C] int32.
        weights: [B, C] float32, 0 where there is no sentence.

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
