"""`cerebras-tf scale` at its smoke shape: every figure is printed. No time is judged here."""

from __future__ import annotations

import re

import pytest

from benchmarks.scale import page
from modelzoo.commands.main import main
from tests.swarmx.ranks import needs_mpi

pytestmark = pytest.mark.tf


@pytest.mark.slow
@needs_mpi()
def test_scale_measures_some_wafers_and_predicts_many(tmp_path, capsys):
    out = tmp_path / "scale.html"
    words = [
        "bench",
        "scale",
        "--smoke",
        "--steps",
        "2",
        "--measure",
        "2",
        "--num_csx",
        "192",
        "1",
        "2",
    ]
    assert not main([*words, "--tree", "8", "--out", str(out)])
    printed = capsys.readouterr().out
    (measured,) = re.findall(r"^ +2 +[\d.]+ +[\d.]+ +\d+% +([\d.]+) +([\d.]+) .*%$", printed, re.M)
    assert float(measured[0]) == pytest.approx(float(measured[1]), rel=0.05)
    assert "predicted, links of 100 Gbit/s, 10 us, a tree of 8 ways" in printed
    rows = re.findall(r"^ +(\d+) +([\d.]+) +[\d.]+ +(\d+)% +[\d.]+ +\d+%$", printed, re.M)
    assert [int(row[0]) for row in rows] == [1, 2, 192]
    assert [int(row[2]) for row in rows][0] == 100
    assert "<svg" in out.read_text(encoding="utf-8")


def test_the_picture_holds_what_is_measured_beyond_what_is_predicted():
    told = {"step_s": 1.0, "sent_bytes": 0, "hidden": 1.0}
    predicted = [{"wafers": n, "efficiency": share, **told} for n, share in ((1, 1.0), (2, 0.5))]
    drawn = page(predicted, {1: {"step_s": [1.0]}, 4: {"step_s": [0.8]}})
    dots = re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', drawn)
    assert [tuple(map(float, dot)) for dot in dots] == [(80.0, 80.0), (920.0, 16.0)]
    (line,) = re.findall(r'<polyline points="([^"]+)"', drawn)
    assert line == "80.0,80.0 500.0,208.0"


@pytest.mark.parametrize(
    "words, what", [(["--gbps", "0"], "above 0"), (["--tree", "1"], "at least 2")]
)
def test_scale_refuses_links_that_are_none(words, what, capsys):
    assert main(["bench", "scale", *words]) == 2
    assert what in capsys.readouterr().err
