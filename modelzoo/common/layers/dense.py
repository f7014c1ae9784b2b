"""The dense layer and its activations. Dropout is placed by callers.

Shapes: B batch, S sequence, N input features, M output features.
"""

from __future__ import annotations

import tensorflow as tf

from modelzoo.common.config.sections import Constant
from modelzoo.common.layers.initializers import make_variable

ZEROS = Constant("constant", 0.0)


def gelu(x):
    """GELU in its tanh approximation (Hendrycks and Gimpel 2016, section 2)."""
    return tf.nn.gelu(x, approximate=True)


def gelu_exact(x):
    """GELU through the error function (Hendrycks and Gimpel 2016, section 2)."""
    return tf.nn.gelu(x, approximate=False)


ACTIVATIONS = {
    "gelu": gelu,
    "gelu_exact": gelu_exact,
    "relu": tf.nn.relu,
    "tanh": tf.tanh,
    None: lambda x: x,
}


def sizes(x):
    """Returns the size of each axis: a number where it is static, else a scalar tensor."""
    if x.shape.is_fully_defined():
        return list(x.shape)
    dynamic = tf.shape(x)
    return [dynamic[axis] if size is None else size for axis, size in enumerate(x.shape)]


def dense(
    x, units, name, kernel_initializer, use_bias=True, activation=None, seed=None, drawn_as=None
):
    """Multiplies the last axis by a kernel, adds a bias and applies an activation.

    Variables ``<name>/<name>/kernel`` [N, M] and ``<name>/<name>/bias`` [M], float32, cast to the
    type of `x`.

    Args:
        x: [B, S, N] or [B, N], of static N; S may differ from batch to batch.
        units: M.
        name: name of the layer.
        kernel_initializer: initializer dataclass.
        use_bias: whether a bias is added.
        activation: a key of ACTIVATIONS.
        seed: model-wide seed of initial values.
        drawn_as: name of a layer beside this one whose kernel has the same initial values.

    Returns:
        [B, S, M] or [B, M], of the type of `x`.
    """
    features, outer = x.shape[-1], tf.compat.v1.get_variable_scope().name
    drawn = drawn_as and "/".join(filter(None, (outer, drawn_as, drawn_as, "kernel")))
    with tf.compat.v1.variable_scope(name), tf.compat.v1.variable_scope(name):
        shape = [features, units]
        kernel = make_variable("kernel", shape, kernel_initializer, seed, drawn_as=drawn)
        rows = tf.reshape(x, [-1, features]) if x.shape.rank > 2 else x  # (B*S, N)
        y = tf.matmul(rows, tf.cast(kernel, x.dtype))
        if use_bias:
            y = tf.nn.bias_add(y, tf.cast(make_variable("bias", [units], ZEROS), x.dtype))
        y = ACTIVATIONS[activation](y)
        if x.shape.rank > 2:
            y = tf.reshape(y, [-1, *sizes(x)[1:-1], units])
        return y
