"""The dense layer and its activations.

Shapes: B batch, S sequence, N input features, M output features.
"""

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
    """Returns the size of each axis: an int if it is static, else a scalar tensor."""
    if x.shape.is_fully_defined():
        return list(x.shape)
    dynamic = tf.shape(x)
    return [dynamic[axis] if size is None else size for axis, size in enumerate(x.shape)]


def dense(
    x, units, name, kernel_initializer, use_bias=True, activation=None, seed=None, same_init_as=None
):
    """Multiplies the last axis by a kernel, adds a bias and applies an activation.

    Variables ``<name>/<name>/kernel`` [N, M] and ``<name>/<name>/bias`` [M], float32, cast to the
    type of `x`.

    Args:
        x: [B, S, N] or [B, N], with a static N.
        units: M.
        same_init_as: name of a layer in the same scope whose kernel has the same initial values.

    Returns:
        [B, S, M] or [B, M], of the type of `x`.
    """
    features, outer = x.shape[-1], tf.compat.v1.get_variable_scope().name
    drawn = same_init_as and "/".join(filter(None, (outer, same_init_as, same_init_as, "kernel")))
    with tf.compat.v1.variable_scope(name), tf.compat.v1.variable_scope(name):
        shape = [features, units]
        kernel = make_variable("kernel", shape, kernel_initializer, seed, same_init_as=drawn)
        rows = tf.reshape(x, [-1, features]) if x.shape.rank > 2 else x  # (B*S, N)
        y = tf.matmul(rows, tf.cast(kernel, x.dtype))
        if use_bias:
            y = tf.nn.bias_add(y, tf.cast(make_variable("bias", [units], ZEROS), x.dtype))
        y = ACTIVATIONS[activation](y)
        if x.shape.rank > 2:
            y = tf.reshape(y, [-1, *sizes(x)[1:-1], units])
        return y
