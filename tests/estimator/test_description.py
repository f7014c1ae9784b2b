"""Checks what is said of a model: large numbers by their names, and seconds by a given speed."""

from __future__ import annotations

import pytest

pytest.importorskip("tensorflow")

from cerebras_tf.estimator.description import effort, in_words
from cerebras_tf.ir.program import Cost, Instruction, Program
from cerebras_tf.ir.schedule import Run

pytestmark = pytest.mark.tf


@pytest.mark.parametrize(
    "number,text",
    [
        (999, "999"),
        (12_345, "12,345"),
        (1_500_000, "1.5 million"),
        (12_340_000_000, "12.3 billion"),
        (2 * 10**12, "2 trillion"),
        (3 * 10**16, "30 quadrillion"),
    ],
)
def test_large_numbers_have_names(number, text):
    assert in_words(number) == text


def test_a_steps_seconds_follow_from_the_machines_speed():
    body = [Instruction("add", (), (), {}, cost=Cost(flops=6 * 10**9))]
    program = Program(bodies=[body], steps=[Run(0, "forward", 0, ())])
    assert effort(program, 3e9) == (
        "6 billion floating-point operations a step, an estimated 2 s or more at the 3 GFLOP/s of "
        "a plain matrix product here"
    )
