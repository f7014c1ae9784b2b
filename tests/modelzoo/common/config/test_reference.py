"""Tests of reference.py: the page of all keys is what the dataclasses say today."""

from __future__ import annotations

import dataclasses

from modelzoo.common.config import reference
from modelzoo.common.config.sections import EarlyStopping, RunConfigParams


def test_the_page_is_up_to_date():
    written = reference.PAGE.read_text(encoding="utf-8")
    assert written == reference.page(), "run: python -m modelzoo.common.config.reference"


def test_the_page_names_every_key_with_type_default_and_source():
    page = reference.page()
    for field in dataclasses.fields(RunConfigParams):
        assert f"\n| `{field.name}` | " in page
    where = "`modelzoo/common/config/sections.py`"
    assert (
        f"| `max_steps` | a whole number or null, at least 1 | `null` | `--max_steps`, {where} |"
        in page
    )
    assert "| `optimizer_type` | a text, one of `sgd`, " in page
    assert "| `hidden_size` | a whole number, at least 1 | required | " in page
    assert "by `scheduler`: `Constant`: [ConstantRate](#constantrate)" in page


def test_every_table_that_is_linked_stands_on_the_page():
    page = reference.page()
    links = {part.partition(")")[0] for part in page.split("](#")[1:]}
    headings = {line[3:].lower() for line in page.splitlines() if line.startswith("## ")}
    assert EarlyStopping.__name__.lower() in links
    assert links <= headings
