"""Layer normalization, computed in float32 for every input dtype."""

import tensorflow.compat.v1 as tf

from modelzoo.common.config.sections import Constant
from modelzoo.common.layers.dense import ZEROS
from modelzoo.common.layers.initializers import make_variable

ONES = Constant("constant", 1.0)


def layer_norm(x, epsilon, name):
    """Normalizes the last axis (Ba, Kiros and Hinton 2016).

    Variables ``<name>/<name>/gamma`` [N] and ``<name>/<name>/beta`` [N], float32.

    Args:
        x: [..., N].
        epsilon: added to the variance.

    Returns:
        [..., N], of the type of `x`.
    """
    features = x.shape[-1]
    with tf.variable_scope(name), tf.variable_scope(name):
        gamma = make_variable("gamma", [features], ONES)
        beta = make_variable("beta", [features], ZEROS)
        wide = tf.cast(x, tf.float32)
        mean, variance = tf.nn.moments(wide, axes=[-1], keepdims=True)
        y = tf.nn.batch_normalization(wide, mean, variance, beta, gamma, epsilon)
        return tf.cast(y, x.dtype)
