"""Writes docs/reference/tensorflow-ops.md: operations with an IR form, and substitutes of others.

python -m tests.capture.op_table
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

import cerebras_tf.capture.capture  # noqa: F401  it registers all rules
from cerebras_tf.capture.complex_numbers import COMPLEX_LOWERINGS
from cerebras_tf.capture.registry import LOWERINGS
from cerebras_tf.capture.substitutes import SUBSTITUTES

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "tensorflow-ops.md"
TEXT = """# TensorFlow operations

These types of operations run on the wafer, with gradients where TensorFlow has them. Operations
that depend on features alone, and those that follow predictions, metrics and summaries, can have
any type: those that are not listed run in the TensorFlow session, as do those between the weights
and the loss that no gradient passes. An operation that is not listed and has a gradient is refused
before the first step, with its name, its line and, where there is a usual one, its substitute.

The page is written by `python -m tests.capture.op_table`.
"""


def families() -> dict[str, list[str]]:
    """Operation types by the words for their file in cerebras_tf/capture."""
    found = defaultdict(list)
    for name, rule in LOWERINGS.items():
        found[rule.__module__.rpartition(".")[2].replace("_", " ")].append(name)
    return {words: sorted(names) for words, names in sorted(found.items())}


def page() -> str:
    """The text of the page."""
    lines = [TEXT, "## On the wafer", "", "| family | operations |", "|---|---|"]
    lines += [f"| {words} | {', '.join(names)} |" for words, names in families().items()]
    lines.append(f"| of complex tensors | {', '.join(sorted(COMPLEX_LOWERINGS))} |")
    lines += ["", "## Substitutes", "", "| operation | use instead |", "|---|---|"]
    lines += [f"| {name} | {use} |" for name, use in sorted(SUBSTITUTES.items())]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"wrote {PAGE}\n")
