"""Writes docs/reference/pytorch-ops.md: how many of PyTorch's samples of each op are right.

    python -m tests.capture_torch.op_table

It replaces the column of the installed version of PyTorch, and keeps those of others.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import torch

from tests.capture_torch.test_op_info import OPS, outcomes

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "pytorch-ops.md"
TEXT = """# PyTorch operations

PyTorch comes with sample inputs of its operations. For each supported operation, the table lists
how many of the samples that were tried have PyTorch's results and gradients, within 1e-4.
All other samples are refused with an error; none has other results. A model can use further
operations, if PyTorch decomposes them into these.

The page is written by `python -m tests.capture_torch.op_table`.

"""


def read(text: str) -> dict[str, dict[str, str]]:
    """The cells of a page, by operation and version."""
    rows = [re.split(r" *\| *", line.strip("| ")) for line in text.splitlines() if line[:1] == "|"]
    if not rows:
        return {}
    versions = rows[0][1:]
    return {name.strip("`"): dict(zip(versions, cells)) for name, *cells in rows[2:]}


def page(cells: dict[str, dict[str, str]]) -> str:
    """The text of the page."""
    versions = sorted(
        {v for row in cells.values() for v in row}, key=lambda v: [*map(int, v.split("."))]
    )
    lines = [f"| operation | {' | '.join(versions)} |", "|---" * (1 + len(versions)) + "|"]
    for name, row in sorted(cells.items()):
        lines.append(f"| `{name}` | {' | '.join(row.get(v, '') for v in versions)} |")
    return TEXT + "\n".join(lines) + "\n"


def main() -> None:
    """Runs the samples and writes the page."""
    version = torch.__version__.partition("+")[0]
    cells = defaultdict(dict, read(PAGE.read_text(encoding="utf-8")) if PAGE.exists() else {})
    for row in cells.values():
        row.pop(version, None)
    for info in OPS:
        found = outcomes(info)
        name = f"{info.name} {info.variant_test_name}".strip()
        cells[name][version] = f"{sum(found)} of {len(found)}"
        print(name, cells[name][version], flush=True)
    PAGE.write_text(page({n: row for n, row in cells.items() if row}), encoding="utf-8")


if __name__ == "__main__":
    main()
