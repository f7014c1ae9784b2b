"""Tests of json_text.py: what is no JSON, and lines written as a whole."""

from __future__ import annotations

import pytest

from cerebras_tf.errors import CerebrasError
from modelzoo.common.convert.hugging_face import read_json
from modelzoo.common.files.json_text import parse_json, write_json_lines
from tests.messages import names


@pytest.mark.parametrize("text", ["{", "[" * 5000])
def test_what_cannot_be_read_is_a_value_error(tmp_path, text):
    with pytest.raises(ValueError):
        parse_json(text)
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CerebrasError) as error:
        read_json(tmp_path / "config.json")
    assert names(error.value, tmp_path / "config.json")


def test_a_row_that_cannot_be_written_leaves_the_file_before(tmp_path):
    path = write_json_lines(tmp_path / "rows.jsonl", [{"é": 1}, {"b": [2]}])
    assert path.read_text(encoding="utf-8") == '{"é": 1}\n{"b": [2]}\n'
    with pytest.raises(TypeError):
        write_json_lines(path, [{"a": 1}, {"b": object()}])
    assert path.read_text(encoding="utf-8") == '{"é": 1}\n{"b": [2]}\n'
    assert [file.name for file in tmp_path.iterdir()] == ["rows.jsonl"]
