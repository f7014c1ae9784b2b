"""Tests of modelzoo/common/config/sections.py: numbers that an optimizer cannot take."""

from __future__ import annotations

import math

import pytest

from cerebras_tf.config import schema
from modelzoo.common.config.sections import OptimizerParams

NUMBERS = (
    ("beta1", -0.9, "must be at least 0.0"),
    ("beta2", 1.0, "must be below 1.0"),
    ("epsilon", -1e-8, "must be at least 0.0"),
    ("epsilon", math.nan, "must be a finite number"),
    ("momentum", -0.9, "must be at least 0.0"),
    ("weight_decay_rate", math.nan, "must be a finite number"),
    ("initial_loss_scale", 0, "must be above 0.0"),
    ("loss_scaling_factor", math.inf, "must be a number above 0"),
    ("loss_scaling_factor", 10**400, "must be a number above 0"),
    ("learning_rate", -1e-3, "must be at least 0.0"),
    ("learning_rate", math.nan, "must be a finite number"),
    (
        "learning_rate",
        {"scheduler": "PiecewiseConstant", "boundaries": [5], "values": [0.1, -0.1]},
        "must be at least 0.0",
    ),
)


@pytest.mark.parametrize(("key", "value", "says"), NUMBERS)
def test_numbers_that_no_optimizer_can_take_are_refused(key, value, says):
    report = schema.Report("f.yaml")
    tree = {"optimizer_type": "adamw", "learning_rate": 1e-3, key: value}
    assert schema.build(OptimizerParams, tree, report) is None
    assert len(report.messages) == 1
    assert report.messages[0].startswith(f"f.yaml: {key}")
    assert says in report.messages[0]


@pytest.mark.parametrize("factor", [1.0, 1024.0, "tf_dynamic"])
def test_keys_of_other_loss_scales_are_refused(factor):
    given = {"min_loss_scale": 2.0, "max_loss_scale": 4.0, "overflow_tolerance": 0.1}
    if factor != "tf_dynamic":
        given |= {"initial_loss_scale": 8.0, "steps_per_increase": 5}
    tree = {"optimizer_type": "sgd", "learning_rate": 1.0, **given}
    report = schema.Report("f.yaml")
    schema.build(OptimizerParams, {**tree, "loss_scaling_factor": factor}, report)
    assert len(report.messages) == len(given)
    for name in given:
        told = f"f.yaml: {name} has no effect with loss_scaling_factor {factor}. Use dynamic"
        assert any(message.startswith(told) for message in report.messages)
    report = schema.Report("f.yaml")
    assert schema.build(OptimizerParams, {**tree, "loss_scaling_factor": "dynamic"}, report)


def test_keys_of_other_kinds_of_optimizer_are_refused():
    given = {"beta1": 0.5, "beta2": 0.5, "epsilon": 0.1, "use_bias_correction": True}
    report = schema.Report("f.yaml")
    schema.build(OptimizerParams, {"optimizer_type": "sgd", "learning_rate": 1.0, **given}, report)
    assert len(report.messages) == 4
    for name, message in zip(given, report.messages):
        assert message.startswith(f"f.yaml: {name} has no effect with sgd. Use adam or adamw")
    report = schema.Report("f.yaml")
    tree = {"optimizer_type": "adamw", "learning_rate": 1.0, "momentum": 0.9, "decay": 0.5}
    schema.build(OptimizerParams, tree, report)
    assert "momentum has no effect with adamw. Use momentum or rmsprop." in report.messages[0]
    assert "decay has no effect with adamw. Use rmsprop." in report.messages[1]
    report = schema.Report("f.yaml")
    for kind in ("adam", "adamw"):
        schema.build(
            OptimizerParams, {"optimizer_type": kind, "learning_rate": 1.0, **given}, report
        )
    assert not report.messages
