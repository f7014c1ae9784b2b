"""Cuts padding off the end of batches of fixed-length records. No token is dropped."""

from __future__ import annotations

import tensorflow.compat.v1 as tf


def crop_padding(tensors, lengths, bounds):
    """Shortens the rows of a batch to the smallest bound above its longest example.

    Args:
        tensors: dictionary of tensors; those [B, S] are shortened, others stay as they are.
        lengths: [B] int32, tokens of each example.
        bounds: lengths that rows may have, ascending; the last, S, holds every example.

    Returns:
        The dictionary with [B, one of `bounds`].
    """
    full = bounds[-1]
    fitting = tf.constant([*bounds[:-1], full + 1])
    longest = tf.reduce_max(lengths)
    length = tf.minimum(tf.reduce_min(tf.boolean_mask(fitting, fitting > longest)), full)

    def cropped(tensor):
        if tensor.shape.rank != 2 or tensor.shape[1] != full:
            return tensor
        return tf.ensure_shape(tensor[:, :length], [tensor.shape[0], None])

    return {name: cropped(tensor) for name, tensor in tensors.items()}
