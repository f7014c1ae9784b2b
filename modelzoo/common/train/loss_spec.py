"""What every model_fn returns once it has a loss: the training operation, or the metrics."""

import tensorflow.compat.v1 as tf

from cerebras_tf import cross_wafer_sum
from cerebras_tf.api import accumulates_batches, job
from modelzoo.common.metrics.streaming import streaming_mean
from modelzoo.common.optimizers.training import make_train_op
from modelzoo.common.train.estimator import CSEstimatorSpec


def loss_spec(mode, params, costs, metrics, summaries=None, derived=None):
    """Makes what a model_fn returns in training and in evaluation.

    The loss of an evaluation is that of the whole set as one batch: a cost counts as often as the
    tokens or examples that it is the mean of, whichever batches they came in. In training it is the
    mean of the step's batches up to the one that was computed last.

    Args:
        mode: ``tf.estimator.ModeKeys.TRAIN`` or ``EVAL``.
        costs: tuples whose first elements add up to the loss: a mean, float32 scalar, and the count
            that it is the mean over, a scalar. Where the weights in the data already contain that
            count of the whole batch, and the cost is their sum divided by the number of records,
            the third element is the number of records, by which micro-batches are weighted.
        metrics: function that returns what ``host_call`` takes, a function of tensors and a list of
            them. It is called in evaluation, unless ``eval_input.disable_eval_metrics`` is set.
        summaries: float32 scalars by the tags they have in training, averaged as the loss is, over
            micro-batches and over wafers; None shows the loss as ``train/cost``.
        derived: function of such a dictionary of means that returns further scalars to show.

    Returns:
        A CSEstimatorSpec.
    """
    training = mode == tf.estimator.ModeKeys.TRAIN
    splits = training and (job.wafers() > 1 or params.runconfig.micro_batches > 1)
    counted = 1 if job.wafers() > 1 else -1
    loss = sum_of(
        over_micro_batches(cost[0], cost[counted]) if splits else cost[0] for cost in costs
    )
    if training:
        # Batches of a step that model_fn accumulates; those of the estimator are micro-batches.
        count = params.batches_per_process
        accumulated = count > 1 and accumulates_batches(count)
        shown = {"train/cost": loss} if summaries is None else summaries
        train_op, (mean, *means) = make_train_op(
            loss,
            params.optimizer,
            params.model.mixed_precision,
            1 if accumulated else count,
            [loss, *shown.values()],
        )
        shown = {name: over_wafers(cost) for name, cost in zip(shown, means)}
        if derived:
            splits = accumulated or params.runconfig.micro_batches > 1
            shown |= derived({k: of_whole(v) for k, v in shown.items()} if splits else shown)
        for name, value in shown.items():
            tf.summary.scalar(name, value)
        return CSEstimatorSpec(mode=mode, loss=mean, train_op=train_op)
    wanted = not getattr(params.eval_input, "disable_eval_metrics", False)
    metric_fn, tensors = metrics() if wanted else (dict, [])
    parts = [tensor for cost in costs for tensor in cost[:2]]

    def with_loss(*given):
        return {**metric_fn(*given[len(parts) :]), "loss": mean_loss(given[: len(parts)])}

    return CSEstimatorSpec(mode=mode, loss=loss, host_call=(with_loss, [*parts, *tensors]))


def over_micro_batches(cost, count):
    """Weighs a cost so that its mean over wafers or micro-batches is that over all it counts.

    Args:
        cost: float32 scalar, the mean over something in this micro-batch.

    Returns:
        A float32 scalar.
    """
    count = tf.cast(count, tf.float32)
    total = tf.stop_gradient(cross_wafer_sum(count))
    batches = float(job.wafers()) if job.wafers() > 1 else cross_wafer_sum(tf.ones([]))
    return cost * tf.math.divide_no_nan(count * batches, total)


def over_wafers(value):
    """Makes the mean of a float32 scalar over all wafers; with one wafer, the scalar."""
    wafers = job.wafers()
    return cross_wafer_sum(value) / float(wafers) if wafers > 1 else value


def of_whole(value):
    """Makes the mean of a float32 scalar over micro-batches, for functions of that mean.

    A step returns means over micro-batches to the session, which computes what follows from them.
    """
    found = tf.numpy_function(lambda mean: mean, [value], tf.float32)
    found.set_shape([])
    return found


def mean_loss(parts):
    """Makes the metric pair of the loss from alternating costs and counts."""
    means = [
        streaming_mean(cost, count, f"loss_{index}")
        for index, (cost, count) in enumerate(zip(parts[::2], parts[1::2]))
    ]
    return tuple(map(sum_of, zip(*means)))


def sum_of(values):
    """Adds up scalars; a single one stays the tensor it is."""
    first, *others = values
    return tf.add_n([first, *others]) if others else first
