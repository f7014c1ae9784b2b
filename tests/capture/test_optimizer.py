"""Fused optimizer operations against TensorFlow's own kernels, over several steps."""

from __future__ import annotations

import pytest

pytest.importorskip("tensorflow")

from tests.capture.optimizer_ops import check_optimizer, operation_types

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
