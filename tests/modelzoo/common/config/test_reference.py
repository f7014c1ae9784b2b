"""Tests of reference.py: the pages are what the dataclasses say, and name every key."""

from __future__ import annotations

import dataclasses
import re

from cerebras_tf.config.run_options import RunConfigParams
from modelzoo.common.config import reference

PAGES = reference.pages()


def test_the_pages_are_up_to_date():
    for path, text in PAGES.items():
        written = (reference.ROOT / path).read_text(encoding="utf-8")
        assert written == text, f"{path}: run python -m modelzoo.common.config.reference"
    found = {f"{reference.FOLDER}/{p.name}" for p in (reference.ROOT / reference.FOLDER).iterdir()}
    assert found == {path for path in PAGES if path.startswith(reference.FOLDER)}


def test_pages_name_keys_with_type_default_text_and_flag():
    page = PAGES[f"{reference.FOLDER}/runconfig.md"]
    for field in dataclasses.fields(RunConfigParams):
        assert f"\n| `{field.name}` | " in page and field.metadata["text"] in page
    row = next(line for line in page.splitlines() if line.startswith("| `max_steps`"))
    assert "an integer or null, at least 1" in row and "`--max_steps`" in row
    assert (
        "| `optimizer_type` | a string, one of `sgd`, " in PAGES[f"{reference.FOLDER}/optimizer.md"]
    )
    assert "| `hidden_size` | an integer, at least 1 | required |" in "".join(PAGES.values())


def test_every_table_that_is_linked_stands_on_its_page():
    for text in PAGES.values():
        headings = {line.lstrip("# ").lower() for line in text.splitlines() if line[:1] == "#"}
        assert set(re.findall(r"\]\(#(\w+)\)", text)) <= headings
