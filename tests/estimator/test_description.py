"""Checks what is said of a model: large numbers by their names, and seconds by a given speed."""

from __future__ import annotations

import pytest

pytest.importorskip("tensorflow")

from cerebras_tf.estimator.description import effort
from cerebras_tf.ir.program import Cost, Instruction, Program
from cerebras_tf.ir.schedule import Run

pytestmark = pytest.mark.tf


def test_a_steps_seconds_follow_from_the_machines_speed():
    body = [Instruction("add", (), (), {}, cost=Cost(flops=6 * 10**9))]
    program = Program(bodies=[body], steps=[Run(0, "forward", 0, ())])
    assert effort(program, 2, 6e9) == (
        "12 billion floating-point operations a step, an estimated 2 s or more at the 6 GFLOP/s of "
        "a plain matrix product here"
    )
