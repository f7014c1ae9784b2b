"""The benchmark of a wafer at an address runs."""

from __future__ import annotations

import re

import pytest

from benchmarks import address
from modelzoo.commands.main import main

pytest.importorskip("grpc")
pytest.importorskip("torch")
pytest.importorskip("transformers")


@pytest.mark.slow
def test_times_of_steps_and_rates_are_printed(monkeypatch, capsys):
    monkeypatch.setattr(address, "MODELS", {"tiny": ((1, 8, 1, 16, 4, 2), 2)})
    monkeypatch.setattr(address, "VARIABLE_BYTES", 1 << 12)
    assert main(["bench", "address"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"sent +[\d.]+ GB/s", printed)
    assert re.search(r"tiny +here +[\d.]+ ms, there +[\d.]+ ms", printed)
