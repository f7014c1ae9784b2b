"""The benchmark compile_time: every figure is printed; depth adds no bodies. No time is judged."""

from __future__ import annotations

import contextlib
import io
import re

import pytest

from modelzoo.commands.main import main


@pytest.fixture(scope="module")
def rows():
    """The figures of every row, by its number of blocks."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main(["bench", "compile_time", "--blocks", "2", "3"]) == 0
    found = re.findall(r"^(\d+) blocks +(\d[\d. ]+)", printed.getvalue(), flags=re.MULTILINE)
    return {int(blocks): [float(word) for word in words.split()] for blocks, words in found}


@pytest.mark.tf
def test_every_depth_has_all_figures(rows):
    assert list(rows) == [2, 3]
    for nodes, layers, bodies, arena_gb, capture_s, layers_s, program_s, total_s in rows.values():
        assert min(nodes, layers, bodies, arena_gb, capture_s) > 0
        assert total_s == pytest.approx(layers_s + program_s, abs=0.011)


@pytest.mark.tf
def test_blocks_with_dropout_share_their_bodies_at_any_depth(rows):
    """GPT-2 with dropout 0.1 after every sublayer and on the attention weights, and clipping."""
    bodies = {figures[2] for figures in rows.values()}
    assert len(bodies) == 1, rows
    assert rows[3][1] > rows[2][1]
