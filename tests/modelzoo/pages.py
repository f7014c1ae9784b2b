"""Reads the tables of configs on the models' pages. Holds no tests."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def cells_of(room):
    """Returns what stands behind each config in the tables of a room's page, by its name.

    Args:
        room: folder in modelzoo/, such as ``gpt3`` or ``bert/fine_tuning/classifier``.
    """
    page = ROOT / "modelzoo" / room / "README.md"
    rows = {}
    for line in page.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0].startswith("`configs/") and len(cells) > 2:
            rows[Path(cells[0].strip("`")).stem] = cells[1:]
    return rows
