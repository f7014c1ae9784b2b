"""Adam with decoupled weight decay. It is a TF1 optimizer, so that slots are checkpointed.

Source: Loshchilov and Hutter, Decoupled Weight Decay Regularization (2019), algorithm 2.
"""

import re

import tensorflow.compat.v1 as tf


class AdamWOptimizer(tf.train.Optimizer):
    """Updates each variable x by its gradient g with the moments m and v.

    m <- b1 m + (1 - b1) g;  v <- b2 v + (1 - b2) g^2;  x <- x - lr (c m / (sqrt(v) + eps) + w x)
    c is sqrt(1 - b2^t) / (1 - b1^t) with `use_bias_correction`, else 1. eps is epsilon, and with
    `corrects_epsilon` epsilon times sqrt(1 - b2^t), which is the same as to add it to the root of
    the corrected moment, v / (1 - b2^t): so do the paper and PyTorch.
    w is 0 for variables whose name matches one of `exclude_from_weight_decay`.

    Args:
        learning_rate: float or float32 scalar tensor.
        beta1: decay of the first moment.
        beta2: decay of the second moment.
        epsilon: added to the root of the second moment.
        corrects_epsilon: whether epsilon is corrected too; needs `use_bias_correction`.
        only_if: boolean scalar tensor. If false, nothing changes. A tf.cond around the whole update
            would trace every variable and gradient into both of its branches.
    """

    def __init__(
        self,
        learning_rate,
        beta1=0.9,
        beta2=0.999,
        epsilon=1e-8,
        weight_decay_rate=0.0,
        exclude_from_weight_decay=(),
        use_bias_correction=False,
        corrects_epsilon=False,
        only_if=None,
        name="AdamW",
    ):
        super().__init__(use_locking=False, name=name)
        self._rate = learning_rate
        self._beta1 = beta1
        self._beta2 = beta2
        self._epsilon = epsilon
        self._weight_decay_rate = weight_decay_rate
        self._exclude = tuple(exclude_from_weight_decay)
        self._use_bias_correction = use_bias_correction
        self._corrects_epsilon = corrects_epsilon
        self._only_if = only_if

    def decays(self, variable_name):
        """Returns whether weight decay applies to the variable of that name."""
        found = any(re.search(pattern, variable_name) for pattern in self._exclude)
        return bool(self._weight_decay_rate) and not found

    def _powers(self):
        with tf.init_scope():  # the optimizer may be applied inside a branch of tf.cond
            graph = tf.get_default_graph()
        return [self._get_non_slot_variable(f"beta{i}_power", graph=graph) for i in (1, 2)]

    def _create_slots(self, var_list):
        if self._use_bias_correction:
            first = min(var_list, key=lambda v: v.name)
            self._create_non_slot_variable(self._beta1, "beta1_power", first)
            self._create_non_slot_variable(self._beta2, "beta2_power", first)
        zeros = {}

        def initial(shape, dtype, partition_info=None):
            """Zeros, shared by all slots of a shape to keep the graph small."""
            key = tuple(shape), dtype
            if key not in zeros:
                zeros[key] = tf.zeros(shape, dtype, name=f"{self._name}/zeros")
            return zeros[key]

        for variable in var_list:
            like = variable.shape, variable.dtype.base_dtype
            for slot in ("m", "v"):
                self._get_or_make_slot_with_initializer(variable, initial, *like, slot, self._name)

    def _prepare(self):
        # One node for each variable instead of thirty. Variables of one shape share a function.
        self._move = tf.function(self._moved, autograph=False)
        self._correction, self._added = 1.0, self._epsilon
        if self._use_bias_correction:
            power1, power2 = self._powers()
            root = tf.sqrt(1.0 - power2)
            self._correction = root / (1.0 - power1)
            if self._corrects_epsilon:
                self._added = self._epsilon * root

    def _resource_apply_dense(self, grad, handle):
        m, v = self.get_slot(handle, "m"), self.get_slot(handle, "v")
        numbers = self._rate, self._correction, self._added, self._only_if
        # Within a colocation, every variable would get a function of its own.
        with tf.get_default_graph().colocate_with(None, ignore_existing=True):
            return self._move(grad, handle, m, v, *numbers, self.decays(handle.name)).op

    def _moved(self, grad, handle, m, v, rate, correction, added, only_if, decays):
        """Updates one variable. The tensor returned depends on the writes."""
        next_m = self._beta1 * m + (1.0 - self._beta1) * grad
        next_v = self._beta2 * v + (1.0 - self._beta2) * tf.square(grad)
        update = correction * next_m / (tf.sqrt(next_v) + added)
        if decays:
            update += self._weight_decay_rate * handle
        variables = handle, m, v
        values = [
            _kept_unless(only_if, variable, value)
            for variable, value in zip(variables, (handle - rate * update, next_m, next_v))
        ]
        with tf.control_dependencies(values):
            writes = [
                variable.assign(value, read_value=False)
                for variable, value in zip(variables, values)
            ]
        with tf.control_dependencies(writes):
            return tf.constant(True)

    def _resource_apply_sparse(self, grad, handle, indices):
        dense = tf.scatter_nd(indices[:, None], grad, tf.shape(handle, out_type=indices.dtype))
        return self._resource_apply_dense(dense, handle)

    def _finish(self, update_ops, name_scope):
        if not self._use_bias_correction:
            return tf.group(*update_ops, name=name_scope)
        power1, power2 = self._powers()
        with tf.control_dependencies(update_ops):
            writes = [
                power.assign(_kept_unless(self._only_if, power, power * beta), read_value=False)
                for power, beta in ((power1, self._beta1), (power2, self._beta2))
            ]
        return tf.group(*update_ops, *writes, name=name_scope)


def _kept_unless(condition, variable, value):
    """Returns `value`, or that of the variable if a condition is given and false."""
    return value if condition is None else tf.where_v2(condition, value, variable)
