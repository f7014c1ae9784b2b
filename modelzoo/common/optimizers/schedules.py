"""Learning rates as functions of the global step, in float32."""

import math

import tensorflow.compat.v1 as tf

from modelzoo.common.config import sections


def learning_rate(pieces, global_step, reset_steps=True):
    """Builds the learning rate of the current step.

    Args:
        pieces: schedule dataclasses of ``modelzoo.common.config.sections``, in sequence. The last
            one has no end.
        reset_steps: whether each piece counts steps from its own start, and not from step 0
            (``disable_lr_steps_reset``).

    Returns:
        A float32 scalar.
    """
    step = tf.cast(global_step, tf.float32)
    starts = [0.0]
    for piece in pieces[:-1]:
        starts.append(starts[-1] + sections.piece_steps(piece))
    rates = [rate_of(p, step - s if reset_steps else step) for p, s in zip(pieces, starts)]
    rate = rates[0]
    for start, later in zip(starts[1:], rates[1:]):
        rate = tf.where(step < start, rate, later)
    return rate


def rate_of(piece, step):
    """Returns one piece's learning rate at its own `step` (float32 scalar)."""
    if isinstance(piece, sections.ConstantRate):
        return tf.constant(piece.learning_rate, tf.float32)
    if isinstance(piece, sections.ExponentialRate):
        power = step / float(piece.decay_steps)
        power = tf.floor(power) if piece.staircase else power
        return piece.initial_learning_rate * tf.exp(power * math.log(piece.decay_rate))
    if isinstance(piece, sections.PiecewiseConstantRate):
        rate = tf.constant(piece.values[-1], tf.float32)
        for boundary, value in reversed(list(zip(piece.boundaries, piece.values))):
            rate = tf.where(step <= float(boundary), tf.constant(value, tf.float32), rate)
        return rate
    if isinstance(piece, sections.CosineRate):
        done = tf.minimum(step / float(piece.decay_steps), 1.0)
        cosine = 0.5 * (1.0 + tf.cos(math.pi * done))
        return piece.initial_learning_rate * ((1.0 - piece.alpha) * cosine + piece.alpha)
    return _polynomial(piece, step)


def _polynomial(piece, step):
    length = tf.constant(float(piece.steps), tf.float32)
    if piece.cycle:  # the length grows to the next multiple that reaches the step
        length = length * tf.maximum(tf.math.ceil(step / length), 1.0)
    left = 1.0 - tf.minimum(step / length, 1.0)
    if piece.power != 1.0:
        left = tf.pow(left, piece.power)
    span = piece.initial_learning_rate - piece.end_learning_rate
    return span * left + piece.end_learning_rate
