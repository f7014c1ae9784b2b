"""Rotary position embedding of queries and keys. It has no variable.

Source: Su et al., RoFormer: Enhanced Transformer with Rotary Position Embedding (2021), equation
34, with adjacent features as pairs. B batch, H heads, S sequence, D head size, R rotary_dim.
"""

import numpy as np
import tensorflow.compat.v1 as tf

from modelzoo.common.layers.dense import sizes

BASE = 10_000.0  # Su et al., section 3.2.2


def rotary_rates(head_size, rotary_dim, base=BASE):
    """Returns the rotation of each feature per position, in radians: [D] float32.

    It is base^(-2j / R) for features 2j and 2j + 1, and 0 for features from R on.

    Args:
        head_size: D, even.
        rotary_dim: R, even, at most D.
        base: above 0.
    """
    pairs = np.arange(head_size) // 2
    rates = base ** (-2.0 * pairs / rotary_dim)
    return np.where(np.arange(head_size) < rotary_dim, rates, 0.0).astype(np.float32)


class Rotary:
    """The sines and cosines of a batch's positions, shared by all layers.

    Angles are computed in float32 for every dtype, because float16 does not distinguish positions
    above 2,048.

    Args:
        head_size: D, even.
        rotary_dim: R, number of rotated features of a head.
        positions: [B, S] or [1, S] integers.
    """

    def __init__(self, head_size, rotary_dim, positions, dtype, base=BASE):
        rates = tf.constant(rotary_rates(head_size, rotary_dim, base))
        signs = tf.constant(np.resize([-1.0, 1.0], head_size).astype(np.float32))
        angles = tf.cast(positions, tf.float32)[:, None, :, None] * rates  # (B, 1, S, D)
        self._cos = tf.cast(tf.cos(angles), dtype)
        self._sin = tf.cast(tf.sin(angles) * signs, dtype)

    def rotate(self, x):
        """Rotates each pair (a, b) by its angle t to (a cos t - b sin t, b cos t + a sin t).

        Args:
            x: queries or keys [B, H, S, D].

        Returns:
            [B, H, S, D], of the type of `x`.
        """
        _, heads, length, size = sizes(x)
        pairs = tf.reshape(x, [-1, heads, length, size // 2, 2])
        swapped = tf.reshape(tf.reverse(pairs, axis=[-1]), [-1, heads, length, size])
        return x * self._cos + swapped * self._sin
