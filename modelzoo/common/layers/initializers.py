"""Initializers of variables.

Each variable has a seed of its own, a hash of its name, so that initial values do not depend on the
order in which the graph is built.
"""

import zlib

import tensorflow.compat.v1 as tf

from modelzoo.common.config import sections


def make_initializer(settings, name, seed=None):
    """Makes a TensorFlow initializer.

    Args:
        settings: one of the initializer dataclasses of ``modelzoo.common.config.sections``.
        seed: model-wide seed (``weight_initialization_seed``), None counts as 0.

    Returns:
        An initializer for float32 variables.
    """
    seed = zlib.crc32(f"{seed or 0}/{name}".encode()) & 0x7FFFFFFF
    if isinstance(settings, sections.TruncatedNormal):
        return tf.truncated_normal_initializer(settings.mean, settings.stddev, seed=seed)
    if isinstance(settings, sections.Normal):
        return tf.random_normal_initializer(settings.mean, settings.stddev, seed=seed)
    if isinstance(settings, sections.Uniform):
        return tf.random_uniform_initializer(settings.minval, settings.maxval, seed=seed)
    if isinstance(settings, sections.Glorot):
        uniform = settings.name == "glorot_uniform"
        distribution = "uniform" if uniform else "truncated_normal"
        return tf.variance_scaling_initializer(1.0, "fan_avg", distribution, seed=seed)
    if isinstance(settings, sections.Constant):
        return tf.constant_initializer(settings.value)
    return tf.variance_scaling_initializer(
        settings.scale, settings.mode, settings.distribution, seed=seed
    )


def make_variable(name, shape, settings, seed=None, trainable=True, same_init_as=None):
    """Makes (or finds) a float32 variable in the current variable scope.

    Args:
        same_init_as: full name of a variable of the same shape with the same initial values.

    Returns:
        A resource variable of float32.
    """
    scope = tf.get_variable_scope().name
    full = f"{scope}/{name}" if scope else name
    return tf.get_variable(
        name,
        shape,
        tf.float32,
        make_initializer(settings, same_init_as or full, seed),
        trainable=trainable,
        use_resource=True,
    )
