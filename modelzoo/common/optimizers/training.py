"""The training operation of a loss: gradients, clipping, loss scaling, update, summaries."""

import tensorflow.compat.v1 as tf

from cerebras_tf import cross_wafer_sum
from cerebras_tf.api import job
from cerebras_tf.errors import GraphError
from modelzoo.common.optimizers.adamw import AdamWOptimizer
from modelzoo.common.optimizers.loss_scale import make_loss_scale
from modelzoo.common.optimizers.schedules import learning_rate

# Optimizers that can skip an update. RMSProp cannot: its momentum slot would still be applied.
_CONDITIONAL = ("sgd", "momentum", "adam", "adamw")


class ConditionalAdam(tf.train.AdamOptimizer):
    """TensorFlow's Adam, which changes nothing if `only_if` is false and gradients are 0.

    Args:
        others: arguments of ``tf.train.AdamOptimizer``.
    """

    def __init__(self, only_if, *others):
        super().__init__(*others)
        self._only_if = only_if

    def _prepare(self):
        super()._prepare()
        for name, fixed in (("_lr_t", 0.0), ("_beta1_t", 1.0), ("_beta2_t", 1.0)):
            setattr(self, name, tf.where_v2(self._only_if, getattr(self, name), fixed))


def make_optimizer(params, rate, mixed_precision=False, only_if=None):
    """Makes the optimizer of the section ``optimizer``.

    Args:
        rate: learning rate, float or float32 scalar.
        only_if: boolean scalar. If false, nothing changes; for optimizers other than AdamW
            gradients must then be 0.

    Returns:
        A ``tf.compat.v1.train.Optimizer``.
    """
    epsilon = params.epsilon
    if epsilon is None:
        epsilon = 1e-5 if mixed_precision else 1e-8
    kind = params.optimizer_type
    guards = only_if is not None
    if kind in ("sgd", "momentum") and guards:
        rate = tf.where_v2(only_if, rate, 0.0)
    if kind == "sgd":
        return tf.train.GradientDescentOptimizer(rate)
    if kind == "momentum":
        momentum = 0.9 if params.momentum is None else params.momentum
        momentum = tf.where_v2(only_if, momentum, 1.0) if guards else momentum
        return tf.train.MomentumOptimizer(rate, momentum)
    if kind == "rmsprop":
        return tf.train.RMSPropOptimizer(rate, params.decay, params.momentum or 0.0, epsilon)
    if kind == "adam":
        given = rate, params.beta1, params.beta2, epsilon
        return ConditionalAdam(only_if, *given) if guards else tf.train.AdamOptimizer(*given)
    return AdamWOptimizer(
        rate,
        params.beta1,
        params.beta2,
        epsilon,
        params.weight_decay_rate,
        params.exclude_from_weight_decay,
        params.use_bias_correction,
        params.epsilon_mode == "corrected",
        only_if,
    )


def make_train_op(loss, params, mixed_precision=False, batches_per_step=1, costs=()):
    """Makes the operation that updates all trainable variables.

    Gradients are those of the float32 loss times the loss scale, divided by the loss scale. With a
    dynamic loss scale, a step with gradients that are not finite changes no variable of the model.
    It still increases the global step, so that the global step is the number of batches read. With
    N batches per step, every Nth call applies the mean of N gradients and increases the global
    step. Adds the summaries train/lr, train/unclipped_grad_norm and train/loss_scale.

    Args:
        batches_per_step: N.

    Returns:
        The operation, and for each of `costs` its mean over the batches of the step so far.
    """
    global_step = tf.train.get_or_create_global_step()
    variables = tf.trainable_variables()
    scale = make_loss_scale(params)
    grads = scaled_gradients(tf.cast(loss, tf.float32), variables, scale)
    is_last, accumulation = tf.constant(True), []
    if batches_per_step > 1:
        grads, is_last, accumulation = accumulate(grads, variables, batches_per_step)
        costs, operation = accumulate_costs(costs, is_last)
        accumulation.append(operation)
    norm = tf.linalg.global_norm(grads)
    rate = learning_rate(params.learning_rate, global_step, not params.disable_lr_steps_reset)
    add_summaries(params, rate, norm, scale, grads, variables)
    grads = clip(grads, norm, params)
    is_dynamic = params.loss_scaling_factor in ("dynamic", "tf_dynamic")
    if not accumulation and not is_dynamic:
        optimizer = make_optimizer(params, rate, mixed_precision)
        return optimizer.apply_gradients(zip(grads, variables), global_step), costs

    is_finite = tf.math.is_finite(norm) if is_dynamic else tf.constant(True)
    if params.optimizer_type in _CONDITIONAL and not accumulation:
        optimizer = make_optimizer(params, rate, mixed_precision, is_finite)
        if params.optimizer_type != "adamw":
            zero = tf.constant(0.0)
            grads = [tf.where_v2(is_finite, g, zero) for g in grads]
        update = optimizer.apply_gradients(zip(grads, variables))
    else:
        optimizer = make_optimizer(params, rate, mixed_precision)
        update = tf.cond(
            tf.logical_and(is_last, is_finite),
            lambda: tf.group(optimizer.apply_gradients(zip(grads, variables))),
            tf.no_op,
        )
    updates = [update, *accumulation]
    if is_dynamic:
        updates.append(scale.update(is_finite, is_last))
    with tf.control_dependencies([rate, norm, update]):
        updates.append(global_step.assign_add(tf.cast(is_last, tf.int64), read_value=False))
    return tf.group(*updates), costs


def scaled_gradients(loss, variables, scale):
    """Returns d loss / d variable for each variable, as float32, through the scaled loss."""
    if scale is None:
        grads = tf.gradients(loss, variables)
    else:
        grads = tf.gradients(loss * scale.value, variables)
    unused = [v.name for v, g in zip(variables, grads) if g is None]
    if unused:
        raise GraphError(
            f"the loss must depend on every trainable variable. Received: {', '.join(unused)} "
            "without gradient. Remove them from the model, or set trainable=False."
        )
    grads = [tf.cast(tf.convert_to_tensor(g), tf.float32) for g in grads]
    if scale is None:
        return grads
    inverse = 1.0 / scale.value
    return [g * inverse for g in grads]


def accumulate(grads, variables, steps):
    """Accumulates gradients over `steps` calls.

    Args:
        grads: float32 tensors.
        steps: N.

    Returns:
        The sums of this and earlier calls divided by N, whether this call is the last of N (boolean
        scalar), and the operations that store or reset the sums.
    """
    zeros = {"initializer": tf.zeros_initializer(), "trainable": False, "use_resource": True}
    count = tf.get_variable("accum_step_counter", [], tf.int32, **zeros)
    next_count = count + 1
    is_last = next_count >= steps
    totals, operations = [], []
    for index, (grad, variable) in enumerate(zip(grads, variables)):
        name = f"{variable.op.name}_grad_accum_{index}"
        kept = tf.get_variable(name, grad.shape, tf.float32, **zeros)
        total = kept + grad * (1.0 / steps)
        totals.append(total)
        with tf.control_dependencies([total]):
            reset = tf.where(is_last, tf.zeros_like(total), total)
            operations.append(kept.assign(reset, read_value=False))
    with tf.control_dependencies([next_count]):
        left = tf.where(is_last, 0, next_count)
        operations.append(count.assign(left, read_value=False))
    return totals, is_last, operations


def accumulate_costs(costs, is_last):
    """Accumulates costs and their count over the batches of a step.

    They have a count of their own because an older checkpoint from the middle of a step may lack
    the variable.

    Returns:
        The mean of each cost over all wafers and the batches so far, as float32, and the operation
        that stores or resets the sums.
    """
    given = tf.stack([*(tf.cast(cost, tf.float32) for cost in costs), 1.0])
    if job.wafers() > 1:  # one wafer writes the sums of all wafers to a checkpoint
        given = cross_wafer_sum(given)
    kept = tf.get_variable(
        "accum_step_costs",
        given.shape,
        tf.float32,
        tf.zeros_initializer(),
        trainable=False,
        use_resource=True,
    )
    total = kept + given
    means = [total[index] / total[len(costs)] for index in range(len(costs))]
    with tf.control_dependencies([total]):
        reset = tf.where(is_last, tf.zeros_like(total), total)
        return means, kept.assign(reset, read_value=False)


def clip(grads, norm, params):
    """Clips gradients by global norm or by value."""
    if params.max_gradient_norm:
        return tf.clip_by_global_norm(grads, params.max_gradient_norm, use_norm=norm)[0]
    if params.max_gradient_value:
        limit = params.max_gradient_value
        return [tf.clip_by_value(g, -limit, limit) for g in grads]
    return grads


def add_summaries(params, rate, norm, scale, grads, variables):
    """Adds the summaries of every run, and those that `params` selects."""
    tf.summary.scalar("train/lr", rate)
    tf.summary.scalar("train/unclipped_grad_norm", norm)
    tf.summary.scalar("train/loss_scale", 1.0 if scale is None else scale.value)
    if params.ws_summary or params.log_summaries:
        zeros = tf.add_n([tf.reduce_sum(tf.cast(tf.equal(g, 0.0), tf.float32)) for g in grads])
        tf.summary.scalar("train/grad_num_zeros", zeros)
        tf.summary.scalar("train/params_norm", tf.linalg.global_norm(list(variables)))
    for grad, variable in zip(grads, variables):
        if params.log_grads:
            tf.summary.scalar(f"grad_norm/{variable.op.name}", tf.norm(grad))
        if params.log_hists:
            tf.summary.histogram(f"grad/{variable.op.name}", grad)
            tf.summary.histogram(f"weight/{variable.op.name}", variable)
