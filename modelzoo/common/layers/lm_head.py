"""Output projection and language model loss. Tokens are counted in float32.

Shapes: B batch, S sequence, T = B * S tokens, V vocabulary, N hidden size.
"""

import tensorflow.compat.v1 as tf

from modelzoo.common.layers.dense import ZEROS, dense
from modelzoo.common.layers.initializers import make_variable


def lm_logits(
    hidden,
    vocab_size,
    table=None,
    initializer=None,
    seed=None,
    name="lm_output_layer",
    use_bias=False,
):
    """Projects hidden states onto the vocabulary.

    Args:
        hidden: [B, S, N].
        vocab_size: V.
        table: the embedding's variable [V, N] to share; None makes ``<name>/<name>/kernel``
            [N, V].
        use_bias: whether ``<name>/<name>/bias`` [V] is added, or ``bias`` with a shared table.

    Returns:
        Logits [T, V] of float32.
    """
    rows = tf.reshape(hidden, [-1, hidden.shape[-1]])  # (T, N)
    if table is None:
        logits = dense(rows, vocab_size, name, initializer, use_bias, seed=seed)
    else:
        logits = tf.matmul(rows, tf.cast(table, rows.dtype), transpose_b=True)
        if use_bias:
            bias = make_variable("bias", [vocab_size], ZEROS)
            logits = tf.nn.bias_add(logits, tf.cast(bias, rows.dtype))
    return tf.cast(logits, tf.float32)


def token_cross_entropy(logits, labels):
    """Returns -log p(label) of every token: [T] float32, from logits [T, V] and labels [B, S]."""
    labels = tf.reshape(labels, [-1])
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)


def lm_loss(cross_entropy, weights, loss_scaling, batch_size):
    """Sums the cross entropy of the tokens, and divides it by their number or by the batch size.

    Args:
        cross_entropy: [T] float32.
        weights: [T] float32, 1 for a token, 0 for padding.
        loss_scaling: ``num_tokens`` or ``batch_size``.

    Returns:
        The loss, a float32 scalar.
    """
    total = tf.reduce_sum(cross_entropy * weights)
    if loss_scaling == "num_tokens":
        return total / tf.maximum(tf.reduce_sum(weights), 1.0e-5)
    return total / tf.cast(batch_size, tf.float32)
