"""The transformer decoder: blocks of self-attention and feed-forward. Holds no embedding, no head.

Shapes: B batch, S sequence, N hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow.compat.v1 as tf

from modelzoo.common.layers.attention import AttentionSettings, dropout, self_attention
from modelzoo.common.layers.dense import dense
from modelzoo.common.layers.layer_norm import layer_norm


@dataclass(frozen=True)
class BlockSettings:
    """What a decoder block is made of."""

    attention: AttentionSettings
    filter_size: int
    nonlinearity: str
    initializer: Any
    output_initializer: Any
    layer_norm_epsilon: float
    use_ffn_bias: bool = True
    dropout_rate: float = 0.0
    use_pre_normalization: bool = True


def numbered(name, index):
    """Returns the name of the layer number `index`: the first has no suffix."""
    return f"{name}_{index}" if index else name


def feed_forward(x, settings, index):
    """Two dense layers with the activation between them.

    Variables ``ffn[_i]/dense_layer[_2i]/...`` and ``ffn[_i]/dense_layer_{2i+1}/...``.

    Args:
        x: [B, S, N].
        settings: BlockSettings.
        index: i, number of the block.

    Returns:
        [B, S, N], of the type of `x`.
    """
    seed = settings.attention.seed
    with tf.variable_scope(numbered("ffn", index)):
        wide = dense(
            x,
            settings.filter_size,
            numbered("dense_layer", 2 * index),
            settings.initializer,
            settings.use_ffn_bias,
            settings.nonlinearity,
            seed=seed,
        )
        return dense(
            wide,
            x.shape[-1],
            numbered("dense_layer", 2 * index + 1),
            settings.output_initializer,
            settings.use_ffn_bias,
            seed=seed,
        )


def residual(x, sublayer, settings, norm_name, training):
    """Adds a sublayer's output to its input, normalizing before it or after the sum.

    Args:
        x: [B, S, N].
        sublayer: a function from [B, S, N] to [B, S, N].
        settings: BlockSettings.
        norm_name: name of the layer norm.
        training: whether dropout applies.

    Returns:
        [B, S, N], of the type of `x`.
    """
    epsilon = settings.layer_norm_epsilon
    pre = settings.use_pre_normalization
    y = sublayer(layer_norm(x, epsilon, norm_name) if pre else x)
    y = x + dropout(y, settings.dropout_rate, training, settings.attention.dropout_seed)
    return y if pre else layer_norm(y, epsilon, norm_name)


def decoder(x, mask, num_layers, settings, training, name="decoder"):
    """Runs `num_layers` blocks.

    The layer norm of attention is number 3i, that of the feed-forward 3i + 2; 3i + 1 stays free
    for the cross-attention of encoder-decoder models.

    Args:
        x: [B, S, N].
        mask: additive attention mask.
        num_layers: number of blocks.
        settings: BlockSettings, the same for all.
        training: whether dropout applies.
        name: scope of all variables.

    Returns:
        [B, S, N], of the type of `x`.
    """
    with tf.variable_scope(name):
        for index in range(num_layers):
            attention_name = numbered("self_attention", index)
            x = residual(
                x,
                lambda y, name=attention_name: self_attention(
                    y, mask, settings.attention, name, training
                ),
                settings,
                numbered("layer_normalization_layer", 3 * index),
                training,
            )
            x = residual(
                x,
                lambda y, index=index: feed_forward(y, settings, index),
                settings,
                numbered("layer_normalization_layer", 3 * index + 2),
                training,
            )
    return x
