"""The transformer encoder: blocks of self-attention and feed-forward, without embedding and head.

Shapes: B batch, S sequence, N hidden size.
"""

import functools

import tensorflow.compat.v1 as tf

from modelzoo.common.layers.attention import attention
from modelzoo.common.layers.block import feed_forward, numbered, residual


def encoder(x, mask, num_layers, settings, training):
    """Runs `num_layers` blocks.

    The layer norms of block i are number 2i and 2i + 1, and so are its dense layers.

    Args:
        x: [B, S, N].
        mask: additive attention mask, such as `padding_mask`. None if every position is visible.

    Returns:
        [B, S, N], of the type of `x`.
    """

    def attend(index, y):
        name = numbered("self_attention", index)
        return attention(y, y, mask, settings.attention, name, training)

    def feed(index, y):
        return feed_forward(y, settings, numbered("ffn", index), 2 * index)

    with tf.variable_scope("encoder"):
        for index in range(num_layers):
            for place, sublayer in enumerate((attend, feed)):
                run = functools.partial(sublayer, index)
                x = residual(x, run, settings, 2 * index + place, training)
    return x
