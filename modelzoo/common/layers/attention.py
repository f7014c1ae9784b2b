"""Multi-head attention, without residual and norm.

Shapes: B batch, S sequence of the queries, M sequence of the keys, H heads, D head size,
N = H * D.
"""

from dataclasses import dataclass
from typing import Any, Optional

import tensorflow.compat.v1 as tf

from modelzoo.common.layers.dense import dense, sizes

MASKED = -1.0e4  # representable in float16, and exp(MASKED) is 0 in float32
NAMES = ("q_projection", "k_projection", "v_projection", "output_transform")


@dataclass(frozen=True)
class AttentionSettings:
    """Settings of an attention layer.

    `scale` multiplies the queries before the product with the keys. `rotary` rotates queries and
    keys by their positions. `names` are those of the four projections. With `keys_begin_as_queries`
    the projections of queries and keys have the same initial values, so that tokens attend to
    similar tokens before training (Trockman and Kolter 2023, Mimetic Initialization of
    Self-Attention Layers, section 4).
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
    rotary: Any = None
    names: tuple = NAMES
    keys_begin_as_queries: bool = False


class KeyValueCache:
    """A key-value cache for generation.

    Args:
        past: [L, 2, B, H, C, D], keys and values of C earlier positions for each of L layers.
    """

    def __init__(self, past):
        self._past = past
        self._present = []

    def extend(self, key, value):
        """Stores the next layer's new keys and values [B, H, S, D].

        Returns the layer's cached keys and values, each [B, H, C, D].
        """
        past = tf.cast(self._past[len(self._present)], key.dtype)
        self._present.append(tf.stack([key, value]))
        return past[0], past[1]

    def present(self):
        """Returns the new keys and values of all layers: [L, 2, B, H, S, D]."""
        return tf.stack(self._present)


class ProjectedMemory:
    """The keys and values of an encoder's output for every layer that attends to it.

    Generation computes them once (`project_memory`) and feeds them at every step. A sentence may
    have several rows of queries, such as the beams of a search: R is B times their number.

    Args:
        keys_values: [L, 2, B, H, M, D] of the L layers in order.
    """

    def __init__(self, keys_values):
        self._keys_values = keys_values
        self._layer = 0

    def grouped(self, x):
        """Concatenates the rows [R, S, N] of each sentence: [B, R / B * S, N]."""
        return tf.reshape(x, [tf.shape(self._keys_values)[2], -1, x.shape[-1]])

    def next(self, dtype):
        """Returns keys and values of the next layer, each [B, H, M, D] of type `dtype`."""
        self._layer += 1
        both = tf.cast(self._keys_values[self._layer - 1], dtype)
        return both[0], both[1]


def causal_mask(length, dtype):
    """Returns an additive mask that hides later positions: [1, 1, S, S], 0 or MASKED."""
    visible = tf.linalg.band_part(tf.ones([length, length], dtype), -1, 0)
    return tf.reshape((1.0 - visible) * MASKED, [1, 1, length, length])


def cached_mask(past_lengths, capacity, length, dtype):
    """Returns the additive causal mask of new positions over a cache and themselves.

    Args:
        past_lengths: [B] int32, number of filled positions in each row's cache.
        capacity: C, number of cached positions.
        length: S, number of new positions.

    Returns:
        [B, 1, S, C + S], 0 or MASKED.
    """
    empty = tf.cast(tf.range(capacity)[None, :] >= past_lengths[:, None], dtype)  # (B, C)
    past = tf.tile((empty * MASKED)[:, None, None, :], [1, 1, length, 1])
    present = tf.tile(causal_mask(length, dtype), [tf.shape(past_lengths)[0], 1, 1, 1])
    return tf.concat([past, present], axis=3)


def padding_mask(input_mask, dtype):
    """Returns an additive mask that hides padding: [B, 1, 1, M], 0 or MASKED.

    Args:
        input_mask: [B, M], 1 where there is padding.
    """
    return tf.cast(input_mask, dtype)[:, None, None, :] * MASKED


def dropout(x, rate, training, seed=None):
    """Drops elements at `rate` while training, and scales the rest up."""
    return tf.nn.dropout(x, rate=rate, seed=seed) if training and rate else x


def split_heads(x, num_heads):
    """Turns [B, S, N] into [B, H, S, D]."""
    _, length, size = sizes(x)
    x = tf.reshape(x, [-1, length, num_heads, size // num_heads])  # (B, S, H, D)
    return tf.transpose(x, [0, 2, 1, 3])


def merge_heads(x):
    """Turns [B, H, S, D] into [B, S, N]."""
    _, heads, length, size = sizes(x)
    return tf.reshape(tf.transpose(x, [0, 2, 1, 3]), [-1, length, heads * size])


def attend(query, key, value, mask, settings, training):
    """Scaled dot-product attention (Vaswani et al. 2017, equation 1) with an additive mask.

    Args:
        query: [B, H, S, D], already scaled.
        key: [B, H, M, D].
        value: [B, H, M, D].
        mask: broadcastable to [B, H, S, M], 0 for a visible key, MASKED for a hidden one. None if
            every key is visible.

    Returns:
        [B, H, S, D], of the type of `query`.
    """
    scores = tf.matmul(query, key, transpose_b=True)  # (B, H, S, M)
    weights = attention_weights(scores, mask, settings)
    weights = dropout(weights, settings.dropout_rate, training, settings.dropout_seed)
    return tf.matmul(weights, value)


def attend_cached(query, past, present, mask, settings):
    """Attention to a cache and to the new positions after it, as `attend` without dropout.

    Only the scores are concatenated. The cache, which may be large, is not copied.

    Args:
        query: [B, H, S, D], already scaled.
        past: keys and values [B, H, C, D].
        present: keys and values [B, H, S, D].
        mask: broadcastable to [B, H, S, C + S], of `cached_mask`.

    Returns:
        [B, H, S, D], of the type of `query`.
    """
    scores = [tf.matmul(query, key, transpose_b=True) for key, _ in (past, present)]
    weights = attention_weights(tf.concat(scores, axis=3), mask, settings)
    capacity = tf.shape(scores[0])[3]
    return tf.matmul(weights[..., :capacity], past[1]) + tf.matmul(
        weights[..., capacity:], present[1]
    )


def attention_weights(scores, mask, settings):
    """Turns scores [B, H, S, M] into weights that sum to 1, of the type of the scores."""
    dtype = scores.dtype
    if settings.softmax_fp32:
        scores = tf.cast(scores, tf.float32)
    if mask is not None:
        scores = scores + tf.cast(mask, scores.dtype)
    return tf.cast(tf.nn.softmax(scores), dtype)


def project_memory(memory, settings):
    """Projects a sequence to keys and values, in the current variable scope.

    Args:
        memory: [B, M, N].

    Returns:
        Keys and values [B, H, M, D], of the type of `memory`.
    """
    q_name, k_name, v_name, _ = settings.names
    bias, size = settings.use_projection_bias, memory.shape[-1]
    key, value = (
        split_heads(
            dense(
                memory,
                size,
                kind,
                settings.initializer,
                bias,
                seed=settings.seed,
                same_init_as=same_init_as,
            ),
            settings.num_heads,
        )
        for kind, same_init_as in (
            (k_name, q_name if settings.keys_begin_as_queries else None),
            (v_name, None),
        )
    )
    return key, value


def attention(x, memory, mask, settings, name, training, cache=None):
    """Attention of a sequence to another one, or to itself.

    Variables ``<name>/{q,k,v}_projection/...`` and ``<name>/output_transform/...``, or the names of
    `settings`.

    Args:
        x: [B, S, N].
        memory: [B, M, N], the source of keys and values (`x` for self-attention), or a
            ProjectedMemory.
        mask: additive mask, see `attend`.
        cache: KeyValueCache of the positions before `memory`.

    Returns:
        [B, S, N], of the type of `x`.
    """
    size = x.shape[-1]
    q_name, _, _, output_name = settings.names
    is_projected = isinstance(memory, ProjectedMemory)
    rows = memory.grouped(x) if is_projected else x
    with tf.variable_scope(name):
        bias = settings.use_projection_bias
        query = dense(rows, size, q_name, settings.initializer, bias, seed=settings.seed)
        query = split_heads(query * settings.scale, settings.num_heads)
        key, value = memory.next(x.dtype) if is_projected else project_memory(memory, settings)
        if settings.rotary is not None:
            query, key = settings.rotary.rotate(query), settings.rotary.rotate(key)
        if cache is None:
            context = attend(query, key, value, mask, settings, training)
        else:
            past = cache.extend(key, value)
            context = attend_cached(query, past, (key, value), mask, settings)
        context = merge_heads(context)
        context = tf.reshape(context, sizes(x)) if is_projected else context
        return dense(
            context,
            size,
            output_name,
            settings.output_initializer,
            settings.use_output_bias,
            seed=settings.seed,
        )
