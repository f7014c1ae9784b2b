"""Tests of files that appear whole or not at all."""

from __future__ import annotations

import pytest

from modelzoo.common.whole_file import write_json_lines, write_whole


def test_a_text_is_written_into_a_folder_that_is_made(tmp_path):
    path = write_whole(tmp_path / "a" / "b.txt", "é\n")
    assert path == tmp_path / "a" / "b.txt"
    assert path.read_text(encoding="utf-8") == "é\n"
    assert [file.name for file in path.parent.iterdir()] == ["b.txt"]


def test_a_row_that_cannot_be_written_leaves_the_file_before(tmp_path):
    path = write_json_lines(tmp_path / "rows.jsonl", [{"é": 1}, {"b": [2]}])
    assert path.read_text(encoding="utf-8") == '{"é": 1}\n{"b": [2]}\n'
    with pytest.raises(TypeError):
        write_json_lines(path, [{"a": 1}, {"b": object()}])
    assert path.read_text(encoding="utf-8") == '{"é": 1}\n{"b": [2]}\n'
    assert [file.name for file in tmp_path.iterdir()] == ["rows.jsonl"]


def test_a_text_that_cannot_be_written_leaves_no_part_of_it(tmp_path):
    with pytest.raises(UnicodeEncodeError):
        write_whole(tmp_path / "a.txt", "\ud800")
    assert not list(tmp_path.iterdir())
