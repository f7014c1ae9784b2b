"""Which sides `bench` compares."""

from __future__ import annotations

import pytest

from benchmarks import training
from cerebras_tf.kernels.instruction_set import AMX, AVX512_BF16


@pytest.mark.parametrize("lacks", [(), (AVX512_BF16,), (AMX,)])
@pytest.mark.parametrize(("asked", "sides"), [(False, 2), (True, 4)])
def test_peers_run_in_bfloat16_where_it_is_asked_for(asked, sides, lacks, monkeypatch):
    monkeypatch.setattr(training, "why_unavailable", lambda kind: "none" if kind in lacks else "")
    assert len(training.peers_of(asked)) == sides


def test_peers_in_bfloat16_are_left_out_where_the_processor_has_none(monkeypatch, capsys):
    monkeypatch.setattr(training, "why_unavailable", lambda kind: "none")
    assert training.peers_of(True) == training.peers_of(False)
    assert "a step takes minutes on this processor" in capsys.readouterr().out
