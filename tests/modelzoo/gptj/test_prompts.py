"""Tests of prompts.py: a prompt is the beginning of a record, with room for the abstract."""

from __future__ import annotations

import dataclasses
import json

import pytest

from cerebras_tf.errors import ConfigError, DataError
from modelzoo.gptj.preparation import SummarizationSettings, write_prompts

EOS, SEP = 256, 257
SETTINGS = SummarizationSettings("ByteTokenizer", max_seq_length=24)


def write_articles(path, rows):
    texts = [
        {"id": "1", "article": article, "highlights": highlights} for article, highlights in rows
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in texts))
    return [str(path)]


def test_prompt_is_the_article_cut_to_leave_room_between_its_marks(tmp_path):
    inputs = write_articles(
        tmp_path / "a.jsonl", [("short", "S."), ("long " * 9, "L.\nM."), ("x", "")]
    )
    path, count = write_prompts(inputs, tmp_path / "out", SETTINGS, max_new_tokens=10)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert count == 2
    assert rows[0] == {"prompt_tokens": [EOS, *b"short", SEP], "reference": "S."}
    assert rows[1] == {"prompt_tokens": [EOS, *b"long long lo", SEP], "reference": "L.\nM."}
    assert len(rows[1]["prompt_tokens"]) + 10 == SETTINGS.max_seq_length


def test_other_prompts_are_not_replaced(tmp_path):
    inputs = write_articles(tmp_path / "a.jsonl", [("a longer article", "S.")])
    path, _ = write_prompts(inputs, tmp_path, SETTINGS, max_new_tokens=10)
    before = path.read_text()
    write_prompts(inputs, tmp_path, SETTINGS, max_new_tokens=10)
    with pytest.raises(ConfigError, match="prompts.jsonl: is there, made of other input or with"):
        write_prompts(inputs, tmp_path, SETTINGS, max_new_tokens=15)
    assert path.read_text() == before


@pytest.mark.parametrize(
    "changes", [{"eos_id": 5}, {"sep_id": -5}, {"sep_id": 258}, {"pad_id": 99999999999}]
)
def test_tokens_that_are_none_are_refused(tmp_path, changes):
    inputs = write_articles(tmp_path / "a.jsonl", [("a longer article", "S.")])
    (key,) = changes
    with pytest.raises(ConfigError, match=f"^{key}: must be "):
        write_prompts(inputs, tmp_path, dataclasses.replace(SETTINGS, **changes), 10)


def test_no_room_and_no_article_are_told(tmp_path):
    inputs = write_articles(tmp_path / "a.jsonl", [("", "A.")])
    with pytest.raises(ConfigError, match="--prompts: must .* 24"):
        write_prompts(inputs, tmp_path, SETTINGS, max_new_tokens=22)
    with pytest.raises(DataError, match="at least one article"):
        write_prompts(inputs, tmp_path, SETTINGS, max_new_tokens=10)
