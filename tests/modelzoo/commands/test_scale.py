"""`cerebras-tf scale` at its smoke shape: every figure is printed. No time is judged here."""

from __future__ import annotations

import re

import pytest

from modelzoo.commands.main import main
from tests.swarmx.ranks import needs_mpi

pytestmark = pytest.mark.tf


@needs_mpi()
def test_scale_measures_some_wafers_and_predicts_many(tmp_path, capsys):
    out = tmp_path / "scale.html"
    words = ["scale", "--smoke", "--steps", "2", "--measure", "2", "--num_csx", "1", "2", "192"]
    assert not main([*words, "--tree", "8", "--out", str(out)])
    printed = capsys.readouterr().out
    (measured,) = re.findall(r"^ +2 +[\d.]+ +[\d.]+ +\d+% +([\d.]+) +([\d.]+) .*%$", printed, re.M)
    assert float(measured[0]) == pytest.approx(float(measured[1]), rel=0.05)
    assert "predicted, links of 100 Gbit/s, 10 us, a tree of 8 ways" in printed
    rows = re.findall(r"^ +(\d+) +([\d.]+) +[\d.]+ +(\d+)% +[\d.]+ +\d+%$", printed, re.M)
    assert [int(row[0]) for row in rows] == [1, 2, 192]
    assert [int(row[2]) for row in rows][0] == 100
    assert "<svg" in out.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "words, what", [(["--gbps", "0"], "above 0"), (["--tree", "1"], "at least 2")]
)
def test_scale_refuses_links_that_are_none(words, what, capsys):
    assert main(["scale", *words]) == 2
    assert what in capsys.readouterr().err
