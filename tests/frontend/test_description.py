"""Checks what is said of a model: large numbers by their names, and seconds by a given speed."""

from __future__ import annotations

import re

import pytest

from cerebras_tf.frontend.description import effort, products
from cerebras_tf.ir.program import Cost, Instruction, Program
from cerebras_tf.ir.schedule import Run
from tests.messages import names


def test_a_steps_seconds_follow_from_the_machines_speed():
    body = [Instruction("add", (), (), {}, cost=Cost(flops=6 * 10**9))]
    program = Program(bodies=[body], schedule=[Run(0, "forward", 0, ())])
    assert names(effort(program, 2, 6e9), "12 billion", "at least 2 s", "6 GFLOP/s")


@pytest.mark.parametrize(
    ("program", "says"),
    [
        (Program(bodies=[[Instruction("matmul", (), (), {})]]), "no large matrix products"),
        (
            Program(bodies=[[Instruction("matmul", (), (), {"compute": "bfloat16"})]]),
            "float32|by A",
        ),
        (None, "if there are any"),
    ],
)
def test_what_multiplies_bfloat16_is_told_where_something_does(program, says):
    (line,) = products(program, "bfloat16")
    assert re.search(says, line)
    assert ("no large matrix products" in line) == (says == "no large matrix products")
    assert products(program, "float32") == []


def test_products_inside_of_branches_count():
    inner = Program(bodies=[[Instruction("matmul", (), (), {"compute": "bfloat16"})]])
    program = Program(bodies=[[Instruction("cond", (), (), {"then": inner})]])
    assert "no large matrix products" not in products(program, "bfloat16")[0]
