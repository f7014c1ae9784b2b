"""What every model_fn ends in once it has a loss: the training operation, or the metrics."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from modelzoo.common.estimator import CSEstimatorSpec
from modelzoo.common.optimizers.training import make_train_op


def loss_spec(mode, params, loss, metrics, summaries=None):
    """Makes what a model_fn returns in training and in evaluation.

    Args:
        mode: ``tf.estimator.ModeKeys.TRAIN`` or ``EVAL``.
        params: BaseParams of the model.
        loss: float32 scalar.
        metrics: function that returns what ``host_call`` takes, a function of tensors and a list of
            them. It is called in evaluation, unless ``eval_input.disable_eval_metrics`` is set.
        summaries: float32 scalars by the tags they have in training; None shows the loss as
            ``train/cost``.

    Returns:
        A CSEstimatorSpec.
    """
    if mode == tf.estimator.ModeKeys.TRAIN:
        for name, value in ({"train/cost": loss} if summaries is None else summaries).items():
            tf.summary.scalar(name, value)
        train_op = make_train_op(
            loss, params.optimizer, params.model.mixed_precision, params.batches_per_step
        )
        return CSEstimatorSpec(mode=mode, loss=loss, train_op=train_op)
    if getattr(params.eval_input, "disable_eval_metrics", False):
        return CSEstimatorSpec(mode=mode, loss=loss)
    return CSEstimatorSpec(mode=mode, loss=loss, host_call=metrics())
