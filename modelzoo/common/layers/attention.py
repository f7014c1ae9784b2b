"""Multi-head attention. Deliberately leaves residuals and norms to the block around it.

Shapes: B batch, S sequence, H heads, D head size, N = H * D.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

import tensorflow.compat.v1 as tf

from modelzoo.common.layers.dense import dense

MASKED = -1.0e4  # representable in float16, and exp(MASKED) is 0 in float32


@dataclass(frozen=True)
class AttentionSettings:
    """What an attention layer is made of.

    `scale` multiplies the queries before the product with the keys.
    """

    num_heads: int
    scale: float
    initializer: Any
    output_initializer: Any
    use_projection_bias: bool = True
    use_output_bias: bool = True
    dropout_rate: float = 0.0
    softmax_fp32: bool = True
    seed: Optional[int] = None
    dropout_seed: Optional[int] = None


def causal_mask(length, dtype):
    """Returns an additive mask that hides later positions: [1, 1, S, S], 0 or MASKED."""
    visible = tf.linalg.band_part(tf.ones([length, length], dtype), -1, 0)
    return tf.reshape((1.0 - visible) * MASKED, [1, 1, length, length])


def dropout(x, rate, training, seed=None):
    """Drops elements at `rate` while training, and scales the rest up."""
    return tf.nn.dropout(x, rate=rate, seed=seed) if training and rate else x


def split_heads(x, num_heads):
    """Turns [B, S, N] into [B, H, S, D]."""
    _, length, size = x.shape
    x = tf.reshape(x, [-1, length, num_heads, size // num_heads])  # (B, S, H, D)
    return tf.transpose(x, [0, 2, 1, 3])


def merge_heads(x):
    """Turns [B, H, S, D] into [B, S, N]."""
    _, heads, length, size = x.shape
    return tf.reshape(tf.transpose(x, [0, 2, 1, 3]), [-1, length, heads * size])


def attend(query, key, value, mask, settings, training):
    """Scaled dot-product attention (Vaswani et al. 2017, equation 1) with an additive mask.

    Args:
        query: [B, H, S, D], already scaled.
        key: [B, H, S, D].
        value: [B, H, S, D].
        mask: broadcastable to [B, H, S, S]; 0 where a key is seen, MASKED where not.
        settings: AttentionSettings.
        training: whether dropout applies.

    Returns:
        [B, H, S, D], of the type of `query`.
    """
    scores = tf.matmul(query, key, transpose_b=True)  # (B, H, S, S)
    if settings.softmax_fp32:
        scores = tf.cast(scores, tf.float32)
    weights = tf.nn.softmax(scores + tf.cast(mask, scores.dtype))
    weights = tf.cast(weights, query.dtype)
    weights = dropout(weights, settings.dropout_rate, training, settings.dropout_seed)
    return tf.matmul(weights, value)


def self_attention(x, mask, settings, name, training):
    """Self-attention over a sequence.

    Variables ``<name>/{q,k,v}_projection/...`` and ``<name>/output_transform/...``.

    Args:
        x: [B, S, N].
        mask: additive mask, see `attend`.
        settings: AttentionSettings.
        name: name of the layer.
        training: whether dropout applies.

    Returns:
        [B, S, N], of the type of `x`.
    """
    size = x.shape[-1]

    def project(kind):
        return dense(
            x,
            size,
            f"{kind}_projection",
            settings.initializer,
            settings.use_projection_bias,
            seed=settings.seed,
        )

    with tf.variable_scope(name):
        query = split_heads(project("q") * settings.scale, settings.num_heads)
        key = split_heads(project("k"), settings.num_heads)
        value = split_heads(project("v"), settings.num_heads)
        context = merge_heads(attend(query, key, value, mask, settings, training))
        return dense(
            context,
            size,
            "output_transform",
            settings.output_initializer,
            settings.use_output_bias,
            seed=settings.seed,
        )
