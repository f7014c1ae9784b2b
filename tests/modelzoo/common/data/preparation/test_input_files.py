"""Tests of input_files.py: every file of a folder is taken once, or told."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from cerebras_tf.errors import DataError
from modelzoo.common.data.preparation import documents
from modelzoo.common.data.preparation.input_files import find_inputs


def listed(paths, tell=lambda line: None):
    return find_inputs(paths, documents.SUFFIXES, tell)


def fill(folder, names):
    for name in names:
        Path(folder, name).parent.mkdir(parents=True, exist_ok=True)
        Path(folder, name).write_bytes(
            gzip.compress(b"text") if name.lower().endswith("z") else b"text"
        )


def test_documented_forms_are_read_in_letters_of_any_case(tmp_path):
    pytest.importorskip("zstandard")
    fill(tmp_path, ["a.txt.gz", "in/B.TXT", "c.Txt.GZ", "d.jsonl"])
    fill(tmp_path, ["e.txt.zst", "f.txt.xz", "g.jsonl.xz", "h.jsonl.zst", "i.jsonl.gz", "k.tar.gz"])
    told = []
    files = listed([str(tmp_path)], told.append)
    assert len(files) == 10 and not told
    for name in ("a.txt.gz", "in/B.TXT", "c.Txt.GZ"):
        assert list(documents.read_documents(str(tmp_path / name))) == ["text"]


def test_rows_are_read_of_names_in_capitals(tmp_path):
    path = tmp_path / "A.JSONL"
    path.write_text('{"text": "a"}\n{"text": "b"}\n')
    assert list(documents.read_documents(str(path))) == ["a", "b"]
    assert len(documents.plan_units([str(path)], 14)) == 2


def test_files_left_out_for_their_names_are_told_in_a_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fill("in", ["a.txt", "b.md", "c.md", "d.csv.gz", "e"])
    told = []
    assert listed(["in"], told.append) == ["in/a.txt"]
    (line,) = told
    assert line.startswith("in: 4 of 5 files ")
    assert "in/b.md" in line
    assert listed(["in/b.md"], told.append) == ["in/b.md"] and len(told) == 1
    fill("other", ["b.md"])
    with pytest.raises(DataError, match=r"other: must be .*a folder without any, with 1 others"):
        listed(["other"])


def test_a_folder_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    fill(tmp_path, ["a.txt", "in/b.txt"])
    scan = os.scandir

    def refuse(path):
        if os.path.basename(path) in locked:
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    for name in ("in", tmp_path.name):
        locked = [name]
        words = f"{name}: must be a folder that can be read. Received: Permission denied. Correct"
        with pytest.raises(DataError, match=words):
            listed([str(tmp_path)])


def test_links_to_folders_are_followed_and_loops_end(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fill("far", ["a.txt"])
    fill("in", ["b.txt", "deep/c.txt"])
    Path("in/link").symlink_to("../far")
    Path("in/again").symlink_to("deep")
    Path("in/loop").symlink_to(".")
    Path("in/self").symlink_to("self")
    assert listed(["in"]) == ["in/b.txt", "in/deep/c.txt", "in/link/a.txt"]


def test_a_file_named_twice_counts_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fill("in", ["a.txt", "b.txt"])
    Path("link").symlink_to("in")
    assert listed(["in/a.txt", str(tmp_path / "in"), "link"]) == sorted(
        ["in/a.txt", str(tmp_path / "in" / "b.txt")]
    )
