"""Tests of modelzoo/common/metrics/bleu.py."""

from __future__ import annotations

import math
import sys

import pytest

from cerebras_tf.errors import ConfigError, DataError
from modelzoo.common.metrics.bleu import corpus_bleu


def test_corpus_bleu_is_the_formula_of_papineni():
    """4 translated words of 5 wanted: precisions 3/4, 2/3, 1/2 and, smoothed, 1/2 of 1."""
    pytest.importorskip("sacrebleu", reason="sacrebleu is not installed")
    found = corpus_bleu(["the quick brown dog"], ["the quick brown fox jumps"])
    precisions = [3 / 4, 2 / 3, 1 / 2, 1 / 2]
    wanted = 100 * math.exp(1 - 5 / 4 + sum(map(math.log, precisions)) / 4)
    assert found.score == pytest.approx(wanted)
    assert "tok:13a" in found.signature and "version:" in found.signature


def test_corpus_bleu_heeds_case_unless_told_not_to():
    pytest.importorskip("sacrebleu", reason="sacrebleu is not installed")
    lines, other = ["A small dog runs home."], ["a Small dog runs home."]
    assert corpus_bleu(lines, lines).score == pytest.approx(100.0)
    assert corpus_bleu(lines, other).score < 90
    lowered = corpus_bleu(lines, other, lowercase=True)
    assert lowered.score == pytest.approx(100.0) and "case:lc" in lowered.signature


def test_corpus_bleu_refuses_lists_that_do_not_go_together():
    pytest.importorskip("sacrebleu", reason="sacrebleu is not installed")
    with pytest.raises(DataError, match="Received: 2 translations, 1 references"):
        corpus_bleu(["a", "b"], ["a"])


def test_corpus_bleu_names_the_package_that_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics", None)
    with pytest.raises(ConfigError, match="pip install sacrebleu"):
        corpus_bleu(["a"], ["a"])
