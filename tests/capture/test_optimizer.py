"""Optimizer operations, dense and sparse, against TensorFlow's own kernels over several steps.

Operands get values by their names in the operation definition.
"""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

# Private API of TensorFlow: the definitions behind tf.raw_ops.
from tensorflow.python.framework import op_def_registry

from tests.capture.steps_of_both import Built, check_steps

pytestmark = pytest.mark.tf

OPERATIONS = [
    ("ResourceApplyGradientDescent", {}),
    ("ResourceApplyMomentum", {}),
    ("ResourceApplyMomentum", {"use_nesterov": True}),
    ("ResourceApplyKerasMomentum", {}),
    ("ResourceApplyKerasMomentum", {"use_nesterov": True}),
    ("ResourceApplyAdam", {}),
    ("ResourceApplyAdam", {"use_nesterov": True}),
    ("ResourceApplyRMSProp", {}),
    ("ResourceApplyRMSProp", {"momentum": 0.0}),
    ("ResourceApplyCenteredRMSProp", {}),
    ("ResourceApplyAdagrad", {}),
    ("ResourceApplyAdagrad", {"update_slots": False}),
    ("ResourceApplyAdagradV2", {}),
    ("ResourceApplyAdagradV2", {"update_slots": False}),
    ("ResourceApplyAdamWithAmsgrad", {}),
    ("ResourceApplyAdaMax", {}),
    ("ResourceApplyAdadelta", {}),
    ("ResourceApplyAddSign", {}),
    ("ResourceApplyPowerSign", {}),
    ("ResourceApplyProximalGradientDescent", {}),
    ("ResourceApplyProximalGradientDescent", {"l1": 0.0}),
    ("ResourceApplyProximalAdagrad", {}),
    ("ResourceApplyProximalAdagrad", {"l1": 0.0}),
    ("ResourceApplyAdagradDA", {}),
    ("ResourceApplyAdagradDA", {"l1": 0.0}),
    ("ResourceApplyFtrl", {}),
    ("ResourceApplyFtrl", {"l1": 0.0}),
    ("ResourceApplyFtrl", {"lr_power": -0.3}),
    ("ResourceApplyFtrl", {"multiply_linear_by_lr": True}),
    ("ResourceApplyFtrlV2", {}),
    ("ResourceApplyFtrlV2", {"multiply_linear_by_lr": True, "lr_power": -0.3}),
    ("ResourceSparseApplyMomentum", {}),
    ("ResourceSparseApplyMomentum", {"use_nesterov": True}),
    ("ResourceSparseApplyKerasMomentum", {}),
    ("ResourceSparseApplyKerasMomentum", {"use_nesterov": True}),
    ("ResourceSparseApplyRMSProp", {}),
    ("ResourceSparseApplyCenteredRMSProp", {}),
    ("ResourceSparseApplyAdagrad", {}),
    ("ResourceSparseApplyAdagrad", {"update_slots": False}),
    ("ResourceSparseApplyAdagradV2", {}),
    ("ResourceSparseApplyAdadelta", {}),
    ("ResourceSparseApplyProximalGradientDescent", {}),
    ("ResourceSparseApplyProximalGradientDescent", {"l1": 0.0}),
    ("ResourceSparseApplyProximalAdagrad", {}),
    ("ResourceSparseApplyAdagradDA", {}),
    ("ResourceSparseApplyFtrl", {}),
    ("ResourceSparseApplyFtrl", {"lr_power": -0.3}),
    ("ResourceSparseApplyFtrl", {"multiply_linear_by_lr": True}),
    ("ResourceSparseApplyFtrlV2", {}),
    ("ResourceSparseApplyFtrlV2", {"l1": 0.0}),
]


SHAPE = (6, 5)
STEPS = 4
HYPERPARAMETERS = {
    "lr": 0.05,
    "alpha": 0.1,
    "momentum": 0.8,
    "rho": 0.9,
    "epsilon": 1e-3,
    "beta": 0.7,
    "beta1": 0.8,
    "beta2": 0.95,
    "beta1_power": 0.64,
    "beta2_power": 0.9,
    "logbase": 0.9,
    "sign_decay": 0.6,
    "l1": 0.3,
    "l2": 0.2,
    "l2_shrinkage": 0.1,
    "lr_power": -0.5,
}
# Variables of either sign; the others are sums or means of squares.
SIGNED = ("var", "m", "mg", "mom", "linear", "gradient_accumulator")


def check_optimizer(op_type, **given):
    """Compares the lowering with the kernel; `given` are attributes and hyperparameters."""
    definition = op_def_registry.get(op_type)
    names = [argument.name for argument in definition.input_arg]
    sparse = "indices" in names

    def build(grad, ids, step):
        fed = {"grad": grad, "delta": grad, "indices": ids, "global_step": step}
        operands = dict(given)
        for name, argument in zip(names, definition.input_arg):
            if argument.type == tf.resource.as_datatype_enum:
                operands[name] = tf.Variable(_initial(name), name=name).handle
            elif name in fed:
                operands[name] = fed[name]
            else:
                operands.setdefault(name, tf.constant(HYPERPARAMETERS[name]))
        return Built(effects=[getattr(tf.raw_ops, op_type)(**operands)])

    random = np.random.default_rng(3)
    batches = []
    for number in range(STEPS):
        ids = random.permutation(SHAPE[0])[:4]
        shape = (len(ids), *SHAPE[1:]) if sparse else SHAPE
        grad = random.standard_normal(shape).astype(np.float32)
        batches.append((grad, ids.astype(np.int32), np.asarray(number + 1, np.int64)))
    check_steps(build, *batches)


def _initial(name):
    random = np.random.default_rng([5, *name.encode()])
    if name in SIGNED:
        return (0.4 * random.standard_normal(SHAPE)).astype(np.float32)
    return random.uniform(0.5, 1.5, SHAPE).astype(np.float32)


@pytest.mark.parametrize(("op_type", "given"), OPERATIONS)
def test_operation_updates_variables_as_its_kernel_does(op_type, given):
    check_optimizer(op_type, **given)


def test_every_optimizer_operation_of_tensorflow_is_tested():
    prefixes = ("ResourceApply", "ResourceSparseApply")
    assert {name for name, _ in OPERATIONS} == {
        n for n in dir(tf.raw_ops) if n.startswith(prefixes)
    }


@pytest.mark.parametrize("multiplied", [False, True])
def test_ftrl_gives_zero_and_not_nan_before_the_first_gradient(multiplied):
    def build(grad):
        slots = {name: tf.Variable(tf.zeros([2])).handle for name in ("accum", "linear")}
        given = {"lr": 0.1, "l1": 0.0, "l2": 0.0, "lr_power": -0.5}
        var = tf.Variable([0.3, -0.2])
        applied = tf.raw_ops.ResourceApplyFtrl(
            var=var.handle, grad=grad, multiply_linear_by_lr=multiplied, **slots, **given
        )
        return Built(effects=[applied])

    check_steps(build, *[(np.array([0.0, slope], np.float32),) for slope in (0.5, -0.1)])
