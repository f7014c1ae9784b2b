"""Static and dynamic loss scaling against float16 underflow."""

import tensorflow.compat.v1 as tf

FACTOR = 2.0


class StaticLossScale:
    """The same factor at every step."""

    def __init__(self, factor):
        self.value = tf.constant(float(factor), tf.float32)


class DynamicLossScale:
    """A factor that grows while gradients are finite and shrinks when too many are not.

    Each step increases the step counter by 1, and also the overflow counter if the gradients' norm
    is not finite. If overflows / steps exceeds the tolerance, the scale is halved. Otherwise, when
    the step counter reaches the period, it is doubled. Both reset the counters. The scale is
    limited to [minimum, maximum].

    Args:
        initial: first scale.
        period: steps per increase.
        minimum: minimum of the scale.
        maximum: maximum of the scale.
        tolerance: fraction of steps that may overflow.
    """

    def __init__(self, initial, period, minimum, maximum, tolerance):
        self._period = float(period)
        self._minimum = float(minimum)
        self._maximum = float(maximum)
        self._tolerance = float(tolerance)
        initial = min(max(float(initial), self._minimum), self._maximum)
        self.variable = _counter("current_loss_scale", initial)
        self.steps = _counter("steps_since_rescale")
        self.overflows = _counter("overflows_since_rescale")
        self.value = tf.identity(self.variable)

    def update(self, is_finite, is_counted):
        """Counts a step.

        Returns:
            The operation that updates the scale and the counters.
        """
        counted = tf.cast(is_counted, tf.float32)
        steps = self.steps + counted
        overflows = self.overflows + counted * (1.0 - tf.cast(is_finite, tf.float32))
        shrink = tf.logical_and(is_counted, overflows > self._tolerance * steps)
        grow = tf.logical_and(tf.logical_not(shrink), steps >= self._period)
        scale = self.value * tf.where(shrink, 1.0 / FACTOR, tf.where(grow, FACTOR, 1.0))
        scale = tf.clip_by_value(scale, self._minimum, self._maximum)
        keep = 1.0 - tf.cast(tf.logical_or(shrink, grow), tf.float32)
        with tf.control_dependencies([scale, steps, overflows]):
            return tf.group(
                self.variable.assign(scale, read_value=False),
                self.steps.assign(steps * keep, read_value=False),
                self.overflows.assign(overflows * keep, read_value=False),
            )


def _counter(name, value=0.0):
    return tf.get_variable(
        name, [], tf.float32, tf.constant_initializer(value), trainable=False, use_resource=True
    )


def make_loss_scale(params):
    """Returns the loss scale of an OptimizerParams, None for no scaling."""
    factor = params.loss_scaling_factor
    if factor == "dynamic":
        return DynamicLossScale(
            params.initial_loss_scale,
            params.steps_per_increase,
            params.min_loss_scale,
            params.max_loss_scale,
            params.overflow_tolerance,
        )
    if factor == "tf_dynamic":  # TensorFlow's own rule: halve at each overflow, down to 1
        return DynamicLossScale(
            params.initial_loss_scale, params.steps_per_increase, 1.0, float("3e38"), 0.0
        )
    return None if factor == 1.0 else StaticLossScale(factor)
