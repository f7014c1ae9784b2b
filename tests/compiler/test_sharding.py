"""A norm of all gradients leaves these with their owners: numbers are told, once."""

from __future__ import annotations

import pytest

from cerebras_tf.compiler.pipeline import Options, compile_step
from cerebras_tf.compiler.sharding import PICK
from cerebras_tf.runtime.collective_plan import (
    EVERYWHERE,
    GATHER,
    MEAN,
    Collective,
    events,
    sent_bytes,
)
from tests.steps import residual_step

BLOCKS = 6


def collectives_of(clip, wafers):
    program = compile_step(residual_step(BLOCKS, clip), Options(wafers=wafers))
    return program, [item for item in events(program) if isinstance(item, Collective)]


@pytest.mark.parametrize("wafers", [2, 3])
def test_clipping_by_a_global_norm_sends_no_gradient_to_all(wafers):
    program, found = collectives_of(True, wafers)
    means = [item for item in found if item.kind == MEAN]
    assert means and all(item.wafer != EVERYWHERE for item in means)
    (told,) = [item for item in found if item.kind == GATHER]
    assert told.bytes == 4 * len(means)
    plain, _ = collectives_of(False, wafers)
    numbers = (wafers - 1) * told.bytes
    assert sum(sent_bytes(program)) == sum(sent_bytes(plain)) + wafers * numbers
    assert sum(item.op == PICK for body in program.bodies for item in body) == 1


def test_one_wafer_picks_nothing():
    program, found = collectives_of(True, 1)
    assert not any(item.op == PICK for body in program.bodies for item in body)
    assert not any(item.kind == GATHER for item in found)
