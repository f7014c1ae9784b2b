"""Answers as spans of a paragraph (Devlin et al. 2018, sections 4.2 and 4.3)."""

import tensorflow.compat.v1 as tf

from modelzoo.bert.fine_tuning.model import FineTuning, head_dense
from modelzoo.bert.fine_tuning.question_answering.data import QuestionAnsweringDataProcessor
from modelzoo.bert.fine_tuning.question_answering.params import Params
from modelzoo.common.fine_tuning.squad_predictions import write_predictions
from modelzoo.common.metrics.streaming import streaming_accuracy

MASKED = -1.0e4  # added to the logits of padding


class QuestionAnswering(FineTuning):
    """A dense layer with two outputs for each token: first and last token of the answer.

    Variables ``qa_logits/qa_logits/...``. Logits are a pair of [B, S], labels [B, 2] int32, the
    positions of the answer's first and last token. Predictions are ``start_logits`` and
    ``end_logits`` [B, S] float32 and ``unique_ids`` [B, 1] int32.
    """

    params_class = Params
    processors = {"QuestionAnsweringDataProcessor": QuestionAnsweringDataProcessor}
    new_layers = ("qa_logits",)
    row_ids = ("unique_ids",)
    write_predictions = staticmethod(write_predictions)

    def logits(self, hidden, features, model, training):
        logits = head_dense(hidden, 2, "qa_logits", model)
        masked = MASKED * tf.cast(features["input_mask"], tf.float32)  # (B, S)
        return logits[:, :, 0] + masked, logits[:, :, 1] + masked

    def loss(self, logits, labels, features, model):
        costs = [
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels[:, i], logits=logits[i])
            for i in range(2)
        ]
        return tf.add_n([tf.reduce_mean(cost) for cost in costs]), tf.shape(labels)[0]

    def metrics(self, logits, labels, features, params):
        positions = [tf.argmax(part, axis=-1, output_type=tf.int32) for part in logits]
        return span_metrics, [labels, *positions]

    def predictions(self, logits):
        return {"start_logits": logits[0], "end_logits": logits[1]}


def span_metrics(labels, starts, ends):
    """Makes the accuracy of the first token, of the last token, and of both together.

    Args:
        labels: [B, 2] int32.
        starts: [B] int32, the likeliest first tokens.
        ends: [B] int32, the likeliest last tokens, chosen independently.

    Returns:
        Pairs ``(value, update)`` by name.
    """
    hits = [tf.equal(labels[:, 0], starts), tf.equal(labels[:, 1], ends)]
    hits.append(tf.logical_and(*hits))
    names = ("accuracy_start", "accuracy_end", "accuracy_span")
    return {
        f"eval/{name}": streaming_accuracy(tf.ones_like(starts), tf.cast(hit, tf.int32), None, name)
        for name, hit in zip(names, hits)
    }
