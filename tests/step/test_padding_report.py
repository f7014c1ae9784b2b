"""Tests of what is said of padding that only weights of the loss tell."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tensorflow")

from cerebras_tf.ir import Dim
from cerebras_tf.ir.program import Program
from cerebras_tf.passes.remove_padding import remove_padding
from cerebras_tf.step.padding_report import PaddingLines
from tests.passes.test_remove_padding import language_model
from tests.token_steps import LENGTH, TokenStep, arrays_of

pytestmark = pytest.mark.tf
# A program of fixed sizes: it has no symbols, and takes whatever comes here.
FIXED = Program()


def lines_of(**sizes):
    """What is said of a first batch, by a program of fixed sizes."""
    step, said = language_model(TokenStep(**sizes)), []
    assert remove_padding(step) == "" and step.optional_packing is not None
    features = {name: arrays_of(step)[name] for name in step.features}
    lines = PaddingLines(False, True, said.append)
    lines.compiled(step, False)
    lines.ran(FIXED, features)
    lines.ran(FIXED, features)
    return said


def test_the_share_of_padding_in_the_first_batch_is_said_once():
    (said,) = lines_of()
    real = np.array([3, 9, 1, 6]).sum() / (4 * LENGTH)
    assert said.startswith(f"{1 - real:.0%} of the first batch's tokens are padding")


def test_nothing_is_said_where_sizes_are_those_of_another_program():
    assert lines_of(batch=Dim.symbol("B", 4)) == []
