"""Reads the tables of docs/reference/models.md. Holds no tests."""

from __future__ import annotations

from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reference" / "models.md"


def cells_of(model_name):
    """Returns the cells after each config of a model in the page's tables, by the config's name."""
    rows = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0].startswith("`configs/") and len(cells) > 2:
            config = ROOT / cells[0].strip("`")
            if yaml.safe_load(config.read_text(encoding="utf-8"))["model_name"] == model_name:
                rows[config.stem] = cells[1:]
    return rows
