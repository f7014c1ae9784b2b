"""Tests of modelzoo/common/metrics/__init__.py."""

from __future__ import annotations

import subprocess
import sys

import pytest

from modelzoo.common import metrics


@pytest.mark.tf
def test_every_public_name_loads():
    pytest.importorskip("tensorflow")
    assert all(getattr(metrics, name) for name in metrics.__all__)


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'rogue'"):
        _ = metrics.rogue


def test_scores_of_texts_load_no_tensorflow():
    files = "bleu, entities, rouge, squad"
    code = (
        f"import sys; from modelzoo.common.metrics import {files}; print('numpy' in sys.modules, "
    )
    code += "'tensorflow' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.split() == ["True", "False"], result.stderr
