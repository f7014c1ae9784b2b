"""Substitutes of refused operations, and the page that lists them."""

from __future__ import annotations

import pytest

pytest.importorskip("tensorflow")

from cerebras_tf.capture.registry import LOWERINGS
from cerebras_tf.capture.substitutes import SUBSTITUTES, advice
from cerebras_tf.tf_compat.internals import op_def_registry
from tests.capture.op_table import PAGE, page

pytestmark = pytest.mark.tf


def test_substitutes_are_of_operations_that_exist_and_are_refused():
    assert not set(SUBSTITUTES) & set(LOWERINGS)
    assert not [name for name in SUBSTITUTES if op_def_registry.get(name) is None]


def test_advice_names_substitutes_and_what_to_do_without_one():
    assert advice(["Lu", "Lu"]).startswith("Instead of Lu, use tf.linalg.solve")
    assert advice(["Lu", "Unknown"]).endswith("add them in cerebras_tf/capture/.")


def test_the_page_of_operations_is_current():
    """Else run `python -m tests.capture.op_table`."""
    assert PAGE.read_text(encoding="utf-8") == page()
