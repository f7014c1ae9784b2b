"""Tests of text_lines.py: the lines of text, and where they begin in large files."""

from __future__ import annotations

import random

import pytest

from cerebras_tf.errors import DataError
from modelzoo.common.files import text_lines
from tests.messages import raises


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", [True, False])
def test_a_file_has_the_same_lines_whichever_way_they_end(tmp_path, end, last):
    lines = ["a b", "", "c\u2028d", "\x85", "e"]
    path = tmp_path / "a.txt"
    path.write_bytes(("\ufeff" + end.join(lines) + end * last).encode())
    assert text_lines.read_lines(path) == lines


def test_a_cr_within_a_line_is_a_character_of_it_where_lines_end_with_lf():
    assert text_lines.split("a\rb\r\n\nc\r") == ["a\rb", "", "c"]
    assert text_lines.split("") == []


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_parts_of_a_file_are_its_lines(tmp_path, monkeypatch, end):
    monkeypatch.setattr(text_lines, "BLOCK_BYTES", 7)
    draw = random.Random(1)
    path = tmp_path / "a.txt"
    for count in (0, 1, 2, 6, 9, 30):
        lines = ["x" * draw.randrange(6) for _ in range(count)]
        data = "".join(line + end for line in lines).encode()
        for cut in {0, len(end) if lines and lines[-1] else 0}:
            path.write_bytes(data[: len(data) - cut])
            number, places = text_lines.line_ends(path, 3)
            parts = [data[a:b].decode() for a, b in zip(places, places[1:])]
            assert number == count and places[-1] == len(data) - cut
            assert len(parts) == -(-count // 3)
            assert [line for part in parts for line in text_lines.split(part)] == lines


def test_a_file_whose_lines_end_with_cr_is_refused(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"a\rb\r")
    with raises(DataError, path, "CR"):
        text_lines.read_lines(path)


def test_a_line_that_is_not_utf_8_is_named(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfa\nb\xff\n")
    with pytest.raises(DataError, match=r"a\.txt:2: .* byte 0xff"):
        text_lines.read_lines(path)
    with pytest.raises(DataError, match=r"a\.txt:8: must be"):
        text_lines.decode(b"a\n\xff", path, 7)


def test_a_missing_file_is_told_with_the_one_that_looks_like_it(tmp_path):
    (tmp_path / "texts.en").write_text("a\n")
    for read in (text_lines.read_lines, lambda path: text_lines.line_ends(path, 3)):
        with pytest.raises(DataError, match=r"Did you mean .*texts\.en\?"):
            read(tmp_path / "text.en")
