"""BERT that points at the first and last token of an answer, as a model_fn. The head only.

Source: Devlin et al. (2018), sections 4.2 and 4.3. answers.py chooses the answer. B batch, S
sequence, N hidden size.
"""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from modelzoo.bert.backbone import bert_encoder, initializer_of
from modelzoo.bert.fine_tuning.question_answering.params import Params
from modelzoo.common.config.params import params_from_dict
from modelzoo.common.layers.dense import dense
from modelzoo.common.metrics.streaming import streaming_accuracy
from modelzoo.common.train.estimator import CSEstimatorSpec
from modelzoo.common.train.loss_spec import loss_spec

WARM_START_EXCLUDES = ("qa_logits",)
MASKED = -1.0e4  # added to the logits of padding


def model_fn(features, labels, mode, params):
    """Builds the graph of training, evaluation or prediction.

    Args:
        features: ``input_ids``, ``input_mask`` (1 where there is padding) and ``segment_ids``
            [B, S] int32; in prediction also ``unique_ids`` [B, 1].
        labels: [B, 2] int32, the places of an answer's first and last token; None in prediction.
        mode: a ``tf.estimator.ModeKeys``.
        params: nested dictionary of the YAML's sections.

    Returns:
        A CSEstimatorSpec. Predictions are ``unique_ids`` [B, 1] int32 and ``start_logits`` and
        ``end_logits`` [B, S] float32.
    """
    params = params_from_dict(Params, params)
    training = mode == tf.estimator.ModeKeys.TRAIN
    starts, ends = span_logits(features, params, training)
    if mode == tf.estimator.ModeKeys.PREDICT:
        numbers = tf.identity(features["unique_ids"])
        predictions = {"unique_ids": numbers, "start_logits": starts, "end_logits": ends}
        return CSEstimatorSpec(mode=mode, predictions=predictions)

    loss = tf.add_n(
        [
            tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels[:, i], logits=logits)
            )
            for i, logits in enumerate((starts, ends))
        ]
    )

    def place_metrics():
        places = [tf.argmax(logits, axis=-1, output_type=tf.int32) for logits in (starts, ends)]
        return span_metrics, [labels, *places]

    return loss_spec(mode, params, [(loss, tf.shape(labels)[0])], place_metrics)


def span_logits(features, params, training):
    """Runs the model.

    Variables of the head: ``qa_logits/qa_logits/...``.

    Args:
        features: as in `model_fn`.
        params: Params.
        training: whether dropout applies.

    Returns:
        Logits of an answer's first and of its last token, each [B, S] float32; those of padding
        are too small to count.
    """
    model = params.model
    longest = params.max_position_embeddings
    x, _ = bert_encoder(features, model, params.vocab_size, longest, training)
    seed = model.weight_initialization_seed
    logits = tf.cast(dense(x, 2, "qa_logits", initializer_of(model), seed=seed), tf.float32)
    masked = MASKED * tf.cast(features["input_mask"], tf.float32)  # (B, S)
    return logits[:, :, 0] + masked, logits[:, :, 1] + masked


def span_metrics(labels, starts, ends):
    """Makes the share of answers whose first token, last token, and both are found.

    Args:
        labels: [B, 2] int32.
        starts: [B] int32, the likeliest first tokens.
        ends: [B] int32, the likeliest last tokens, chosen by themselves.

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
