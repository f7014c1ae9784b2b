"""The transformer decoder: blocks of attention and feed-forward, without embedding and head.

Shapes: B batch, S sequence, M sequence of the encoder, N hidden size.
"""

import functools

import tensorflow.compat.v1 as tf

from modelzoo.common.layers.attention import attention
from modelzoo.common.layers.block import feed_forward, numbered, residual


def decoder(
    x,
    mask,
    num_layers,
    settings,
    training,
    memory=None,
    memory_mask=None,
    first_norm=0,
    first_dense=0,
    cache=None,
):
    """Runs `num_layers` blocks of self-attention, attention to an encoder, and feed-forward.

    The layer norms of block i are number 3i, 3i + 1 (of the attention to the encoder; unused
    without one) and 3i + 2, its dense layers 2i and 2i + 1.

    Args:
        x: [B, S, N].
        memory: output of the encoder [B, M, N]. None for a decoder without encoder.
        memory_mask: additive mask of the attention to `memory`.
        cache: KeyValueCache of the positions before `x`.

    Returns:
        [B, S, N], of the type of `x`.
    """

    def attend_to_self(index, y):
        name = numbered("self_attention", index)
        return attention(y, y, mask, settings.attention_of(index), name, training, cache)

    def attend_to_memory(index, y):
        name = numbered("encoder_decoder_attention", index)
        return attention(y, memory, memory_mask, settings.attention, name, training)

    def feed(index, y):
        return feed_forward(y, settings, numbered("ffn", index), first_dense + 2 * index)

    sublayers = [attend_to_self, attend_to_memory, feed]
    with tf.variable_scope("decoder"):
        for index in range(num_layers):
            for place, sublayer in enumerate(sublayers):
                if sublayer is attend_to_memory and memory is None:
                    continue
                number = first_norm + 3 * index + place
                run = functools.partial(sublayer, index)
                x = residual(x, run, settings, number, training)
    return x
