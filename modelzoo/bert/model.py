"""BERT pre-training as a model_fn: masked words and next sentence.

Sources: Devlin et al., BERT (2018); Liu et al., RoBERTa (2019), without the next sentence. B batch,
S sequence length, P masked positions of a sequence, M = B * P of a batch, V vocabulary, N hidden
size.
"""

import tensorflow.compat.v1 as tf

from modelzoo.bert.backbone import bert_encoder, initializer_of, pooled
from modelzoo.bert.params import Params
from modelzoo.common import metrics
from modelzoo.common.config.params import params_from_dict
from modelzoo.common.layers.dense import ZEROS, dense
from modelzoo.common.layers.initializers import make_variable
from modelzoo.common.layers.layer_norm import layer_norm
from modelzoo.common.layers.lm_head import token_cross_entropy
from modelzoo.common.train.estimator import CSEstimatorSpec
from modelzoo.common.train.loss_spec import loss_spec


def model_fn(features, labels, mode, params):
    """Builds the graph of training, evaluation or prediction.

    Args:
        features: those of `bert_encoder`, and ``masked_lm_positions``, ``masked_lm_ids`` [B, P]
            int32, ``masked_lm_weights`` [B, P] float32, 0 for the padding of the list.
        labels: next sentence labels [B, 1] int32, 1 for a random second segment; ignored with
            ``disable_nsp``.
    """
    params = params_from_dict(Params, params)
    model = params.model
    training = mode == tf.estimator.ModeKeys.TRAIN
    hidden, table = bert_encoder(
        features, model, params.vocab_size, params.max_position_embeddings, training
    )
    word_logits = masked_lm_logits(hidden, features["masked_lm_positions"], table, model)  # (M, V)
    sentence_logits = None if model.disable_nsp else next_sentence_logits(hidden, model)  # (B, C)
    if mode == tf.estimator.ModeKeys.PREDICT:
        return CSEstimatorSpec(mode=mode, predictions=predict(features, word_logits))

    words = token_cross_entropy(word_logits, features["masked_lm_ids"])  # (M,)
    weights = tf.reshape(tf.cast(features["masked_lm_weights"], tf.float32), [-1])
    batch_size = features["input_ids"].shape[0] or tf.shape(features["input_ids"])[0]
    word_cost = masked_lm_loss(words, weights, model.mlm_loss_scaling, batch_size)
    loss = word_cost * model.mlm_loss_weight
    masked = tf.reduce_sum(tf.cast(weights > 0, tf.float32))
    counts = {"batch_size": [batch_size], "num_masked": [masked]}
    costs = [(loss, *counts.get(model.mlm_loss_scaling, [masked, batch_size]))]
    summaries = {"train/cost_masked_lm": loss}
    if sentence_logits is not None:
        sentence_cost = tf.reduce_mean(token_cross_entropy(sentence_logits, labels))
        costs.append((sentence_cost, batch_size))
        summaries["train/cost_cls"] = sentence_cost
        loss = loss + sentence_cost

    def metrics_of_batch():
        ids = tf.reshape(features["masked_lm_ids"], [-1])
        tensors = [ids, choices(word_logits), words, weights]
        if sentence_logits is not None:
            tensors += [tf.reshape(labels, [-1]), choices(sentence_logits)]
        return pretraining_metrics, tensors

    summaries["train/cost"] = loss
    return loss_spec(mode, params, costs, metrics_of_batch, summaries)


def masked_lm_logits(hidden, positions, table, model):
    """Predicts the words at the masked positions (Devlin et al. 2018, section 3.1).

    Variables ``mlm_layer/mlm_ffn/...``, ``mlm_layer/mlm_layer_norm/...``, ``mlm_layer/mlm_bias``.

    Args:
        hidden: [B, S, N].
        positions: [B, P] int32.
        table: the variable of the embedding [V, E], which is the output projection too.

    Returns:
        Logits [M, V] of float32.
    """
    vocab_size, size = table.shape
    rows = tf.gather(hidden, positions, batch_dims=1)  # (B, P, N)
    rows = tf.reshape(rows, [-1, hidden.shape[-1]])  # (M, N)
    with tf.variable_scope("mlm_layer"):
        seed, activation = model.weight_initialization_seed, model.mlm_nonlinearity
        activation = activation or model.activation
        initial = initializer_of(model)
        rows = dense(rows, size, "mlm_ffn", initial, activation=activation, seed=seed)
        rows = layer_norm(rows, model.layer_norm_epsilon, "mlm_layer_norm")
        bias = make_variable("mlm_bias", [vocab_size], ZEROS)
        logits = tf.matmul(rows, tf.cast(table, rows.dtype), transpose_b=True)
        return tf.cast(tf.nn.bias_add(logits, tf.cast(bias, rows.dtype)), tf.float32)


def next_sentence_logits(hidden, model):
    """Predicts whether the second segment follows the first.

    Variables ``cls_layer/cls_dense/...``, ``cls_layer/cls_output_dense/...``.

    Args:
        hidden: [B, S, N].

    Returns:
        Logits [B, C] of float32, C = num_cls_classes.
    """
    first = pooled(hidden, model)
    initial, seed = initializer_of(model), model.weight_initialization_seed
    with tf.variable_scope("cls_layer"):
        logits = dense(first, model.num_cls_classes, "cls_output_dense", initial, seed=seed)
        return tf.cast(logits, tf.float32)


def masked_lm_loss(cross_entropy, weights, scaling, batch_size):
    """Sums the cross entropy of the masked words and divides.

    Args:
        cross_entropy: [M] float32.
        weights: [M] float32.
        scaling: ``num_masked`` divides by the sum of the weights; ``batch_size`` by the batch, and
            ``precomputed_num_masked`` too, where the data has scaled the weights so that the
            result is the mean over the masked words.

    Returns:
        The loss, a float32 scalar.
    """
    total = tf.reduce_sum(cross_entropy * weights)
    if scaling == "num_masked":
        return total / tf.maximum(tf.reduce_sum(weights), 1.0e-5)
    return total / tf.cast(batch_size, tf.float32)


def choices(logits):
    """Returns the likeliest class of each row: [rows] int32."""
    return tf.argmax(logits, axis=-1, output_type=tf.int32)


def pretraining_metrics(ids, words, cross_entropy, weights, labels=None, sentences=None):
    """Makes the metrics of the masked words and, where there are labels, of the next sentence.

    Args:
        ids: [M] int32, the words that were masked.
        words: [M] int32, the likeliest ones.
        cross_entropy: [M] float32.
        weights: [M] float32, above 0 for a masked word.
        labels: [B] int32 next sentence labels.
        sentences: [B] int32, the likeliest ones.

    Returns:
        Pairs ``(value, update)`` by name.
    """
    pairs = metrics.masked_lm_metrics(ids, words, cross_entropy, weights)
    if labels is not None:
        pairs.update(metrics.next_sentence_metrics(labels, sentences))
    return pairs


def predict(features, logits):
    """Returns the likeliest word at every masked position, and its log-probability.

    Args:
        logits: [M, V] float32.

    Returns:
        ``input_ids`` [B, S], ``masked_lm_positions``, ``predicted_ids`` [B, P] int32 and
        ``predicted_log_probs`` [B, P] float32.
    """
    positions = features["masked_lm_positions"]
    likeliest = choices(logits)
    shape = [-1, positions.shape[1]]
    return {
        "input_ids": tf.identity(features["input_ids"]),
        "masked_lm_positions": tf.identity(positions),
        "predicted_ids": tf.reshape(likeliest, shape),
        "predicted_log_probs": tf.reshape(-token_cross_entropy(logits, likeliest), shape),
    }
