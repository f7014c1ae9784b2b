"""Fused optimizer operations against TensorFlow's own kernels, over several steps."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

from tests.capture.optimizer_ops import check_optimizer, operation_types
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
]


@pytest.mark.parametrize(("op_type", "given"), OPERATIONS)
def test_operation_moves_variables_as_its_kernel_does(op_type, given):
    check_optimizer(op_type, **given)


def test_every_dense_optimizer_operation_of_tensorflow_is_tested():
    assert {op_type for op_type, _ in OPERATIONS} == set(operation_types("ResourceApply"))


@pytest.mark.parametrize("multiplied", [False, True])
def test_ftrl_gives_zero_and_not_nan_where_no_gradient_has_come_yet(multiplied):
    def build(grad):
        slots = {name: tf.Variable(tf.zeros([2])).handle for name in ("accum", "linear")}
        given = {"lr": 0.1, "l1": 0.0, "l2": 0.0, "lr_power": -0.5}
        var = tf.Variable([0.3, -0.2])
        applied = tf.raw_ops.ResourceApplyFtrl(
            var=var.handle, grad=grad, multiply_linear_by_lr=multiplied, **slots, **given
        )
        return Built(effects=[applied])

    check_steps(build, *[(np.array([0.0, slope], np.float32),) for slope in (0.5, -0.1)])
