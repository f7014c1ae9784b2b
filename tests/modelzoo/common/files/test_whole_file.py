"""Tests of JSON lines that appear whole or not at all."""

from __future__ import annotations

import pytest

from modelzoo.common.files.whole_file import write_json_lines


def test_a_row_that_cannot_be_written_leaves_the_file_before(tmp_path):
    path = write_json_lines(tmp_path / "rows.jsonl", [{"é": 1}, {"b": [2]}])
    assert path.read_text(encoding="utf-8") == '{"é": 1}\n{"b": [2]}\n'
    with pytest.raises(TypeError):
        write_json_lines(path, [{"a": 1}, {"b": object()}])
    assert path.read_text(encoding="utf-8") == '{"é": 1}\n{"b": [2]}\n'
    assert [file.name for file in tmp_path.iterdir()] == ["rows.jsonl"]
