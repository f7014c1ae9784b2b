"""Tests of the command convert: what is missing is told before the work."""

from __future__ import annotations

import sys

import pytest

pytestmark = pytest.mark.tf
pytest.importorskip("tensorflow")

from modelzoo.commands import convert
from modelzoo.commands.main import main


def test_packages_of_logits_are_looked_for_before_weights_are_compared(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(convert, "verify_weights", lambda *_: pytest.fail("compared"))
    assert main(["convert", "verify", "theirs", "ours", "--logits"]) == 2
    assert "--logits: needs PyTorch and transformers" in " ".join(capsys.readouterr().err.split())
