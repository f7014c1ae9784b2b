"""Loss, metrics, predictions and training of a next-token language model, given its logits.

B batch, S sequence, T = B * S tokens, V vocabulary.
"""

import functools

import tensorflow.compat.v1 as tf

from cerebras_tf.errors import ConfigError, DataError
from modelzoo.common import metrics
from modelzoo.common.data.prepared import read_facts
from modelzoo.common.data.text_files import read_text
from modelzoo.common.layers.lm_head import lm_loss, token_cross_entropy
from modelzoo.common.train.estimator import CSEstimatorSpec
from modelzoo.common.train.loss_spec import loss_spec

COST = "train/lm_cost"  # of a token, in nats


def language_model_spec(
    features, labels, mode, params, logits, loss_scaling="num_tokens", loss_weight=1.0
):
    """Makes what a model_fn of a language model returns.

    Args:
        features: ``input_ids`` [B, S] int32 and ``input_mask`` [B, S], 1 where there is padding.
        labels: [B, S] int32, the next tokens; None in prediction.
        mode: a ``tf.estimator.ModeKeys``.
        params: the model's parameters, with ``optimizer``, ``train_input`` and ``eval_input``.
        logits: [T, V] float32.
        loss_scaling: ``num_tokens`` or ``batch_size``, what the loss is divided by.

    Returns:
        A CSEstimatorSpec.
    """
    choices = tf.argmax(logits, axis=-1, output_type=tf.int32)  # (T,)
    if mode == tf.estimator.ModeKeys.PREDICT:
        return CSEstimatorSpec(mode=mode, predictions=predict(features, logits, choices))

    cross_entropy = token_cross_entropy(logits, labels)  # (T,)
    weights = tf.reshape(1.0 - tf.cast(features["input_mask"], tf.float32), [-1])
    batch_size = tf.shape(labels)[0] if labels.shape[0] is None else labels.shape[0]
    loss = lm_loss(cross_entropy, weights, loss_scaling, batch_size) * loss_weight
    count = tf.reduce_sum(weights) if loss_scaling == "num_tokens" else batch_size
    summaries = {}
    if mode == tf.estimator.ModeKeys.TRAIN:
        summaries[COST] = lm_loss(cross_entropy, weights, "num_tokens", None)

    def token_metrics():
        ratio = tokens_per_byte(params.eval_input, training=False)
        tensors = [tf.reshape(labels, [-1]), choices, cross_entropy, weights]
        return functools.partial(metrics.lm_metrics, ratio=ratio), tensors

    derived = functools.partial(other_units, params)
    return loss_spec(mode, params, [(loss, count)], token_metrics, summaries, derived)


def other_units(params, shown):
    """Returns the mean cost of a token as perplexity and, where known, bits per byte, by tags.

    The second tag of each is that of an evaluation too: TensorBoard shows both in one chart.
    """
    cost = shown[COST]
    ratio = tokens_per_byte(params.train_input, training=True)
    found = dict.fromkeys(["train/lm_perplexity", "perplexity"], metrics.perplexity(cost))
    if ratio is not None:
        bits = metrics.bits_per_byte(cost, ratio)
        found |= dict.fromkeys(["train/lm_bpb", "bits_per_byte"], bits)
    return found


def predict(features, logits, choices):
    """Returns the likeliest next token after every token, and its log-probability.

    Args:
        logits: [T, V] float32.
        choices: [T] int32, argmax of the logits.

    Returns:
        ``input_ids``, ``next_token_ids`` [B, S] int32 and ``next_token_log_probs`` [B, S] float32.
    """
    ids = features["input_ids"]
    shape = [-1, ids.shape[1]]
    log_probs = -token_cross_entropy(logits, choices)
    return {
        "input_ids": tf.identity(ids),
        "next_token_ids": tf.reshape(choices, shape),
        "next_token_log_probs": tf.reshape(log_probs, shape),
    }


OF_BYTES = "GptTextDataProcessor"


def tokens_per_byte(section, training):
    """Returns the tokens per byte of an input section's text; None if they are not known.

    Tokens at the ends of texts count. They are counted in text files, and read from the manifest of
    prepared records; without one, a line is logged.

    Args:
        section: an input section of a language model, or None.
        training: whether to count the training split of a section that splits files.
    """
    if section is None:
        return None
    if section.data_processor == OF_BYTES:
        return _of_text(section, training)
    folders = section.data_dir
    folders = (folders,) if isinstance(folders, str) else tuple(folders)
    return _of_records(folders)


def _of_text(section, training):
    try:
        text = read_text(section, training)
    except (ConfigError, DataError, OSError):
        return None  # the input function, if the mode needs data, raises
    return len(text.tokens) / text.text_bytes if text.text_bytes else None


@functools.cache  # one line of the log a run
def _of_records(folders):
    found = [read_facts(folder) for folder in folders]
    counts = [facts.tokens_and_bytes for facts in found if facts and facts.tokens_and_bytes]
    if counts and len(counts) == len(folders):
        tokens, text_bytes = map(sum, zip(*counts))
        return tokens / text_bytes
    tf.logging.info(
        "bits per byte are not shown, because the number of bytes of the tokens of %s is unknown",
        ", ".join(folders),
    )
    return None
