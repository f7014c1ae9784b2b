"""Optimizer operations on rows of tables against TensorFlow's own kernels, over several steps."""

from __future__ import annotations

import pytest

pytest.importorskip("tensorflow")

from tests.capture.optimizer_ops import check_optimizer, operation_types

pytestmark = pytest.mark.tf

OPERATIONS = [
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


@pytest.mark.parametrize(("op_type", "given"), OPERATIONS)
def test_operation_moves_the_rows_its_kernel_moves(op_type, given):
    check_optimizer(op_type, **given)


def test_every_sparse_optimizer_operation_of_tensorflow_is_tested():
    assert {op_type for op_type, _ in OPERATIONS} == set(operation_types("ResourceSparseApply"))
