"""Token and position embeddings. Gradients are dense, never IndexedSlices.

Shapes: B batch, S sequence, V vocabulary, N embedding size, P positions.
"""

import numpy as np
import tensorflow.compat.v1 as tf

from modelzoo.common.layers.dense import sizes
from modelzoo.common.layers.initializers import make_variable


def token_embedding(ids, vocab_size, size, name, initializer, dtype, seed=None):
    """Embeds tokens.

    Variable ``<name>/embedding_weights`` [V, N], float32.

    Args:
        ids: [B, S] int32.
        vocab_size: V.
        size: N.

    Returns:
        The embedded tokens [B, S, N] of type `dtype`, and the table's variable.
    """
    with tf.variable_scope(name):
        table = make_variable("embedding_weights", [vocab_size, size], initializer, seed)
        # The gradient of the product is dense, as that of a shared output projection.
        return tf.cast(tf.gather(table * 1.0, ids), dtype), table


def fixed_positions(positions, size):
    """Returns the sinusoids of Vaswani et al. (2017, section 3.5).

    Sine and cosine interleave along the channels.

    Args:
        positions: P.
        size: N, even.

    Returns:
        [P, N] float32.
    """
    rates = np.exp(-np.log(1.0e4) * np.arange(size // 2) / max(size // 2 - 1, 1))
    angles = np.arange(positions)[:, None] * rates[None, :]
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(positions, size).astype("f")


def add_position_embedding(x, positions, name, initializer=None, seed=None, indices=None, offset=0):
    """Adds an embedding of the position to every token.

    Variable ``<name>/position_embedding_weights`` [offset + P, N], not trainable for sinusoids.

    Args:
        x: [B, S, N].
        positions: P, at least S.
        initializer: initializer dataclass of learned positions; None for fixed sinusoids.
        indices: [B, S] int32, the position of every token; None for 0 to S - 1.
        offset: number of rows before that of position 0.

    Returns:
        [B, S, N], of the type of `x`.
    """
    _, length, size = sizes(x)
    positions += offset
    with tf.variable_scope(name):
        if initializer is None:
            table = tf.get_variable(
                "position_embedding_weights",
                initializer=lambda: tf.constant(fixed_positions(positions, size)),
                trainable=False,
                use_resource=True,
                dtype=tf.float32,
            )
        else:
            shape = [positions, size]
            table = make_variable("position_embedding_weights", shape, initializer, seed)
        if indices is not None:
            rows = tf.gather(table, indices + offset)
        else:
            rows = table if x.shape[1] == positions else table[offset : offset + length]
        return x + tf.cast(rows, x.dtype)
