"""Tests of scripts/create_ner_tfrecords.py as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.tf
pytest.importorskip("tensorflow")

from tests.modelzoo.bert.fine_tuning.made_data import write_tagged, write_vocabulary

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "create_ner_tfrecords.py"


def call(tmp_path, *arguments):
    command = [sys.executable, SCRIPT, "--data_dir", tmp_path / "data"]
    command += ["--output_dir", tmp_path / "out", "--vocab_file", write_vocabulary(tmp_path)]
    command += ["--processes", "1", "--max_seq_length", "24", *arguments]
    return subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=120)


def test_script_makes_every_split_and_the_labels(tmp_path):
    write_tagged(tmp_path / "data")
    result = call(tmp_path, "--do_lower_case")
    assert result.returncode == 0, result.stderr
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["48", "13", "9"]
    names = json.loads((tmp_path / "out/label2id.json").read_text())
    assert list(names) == ["[PAD]", "B-Disease", "I-Disease", "O", "X", "[CLS]", "[SEP]"]
    assert {p.name for p in (tmp_path / "out").iterdir()} == {
        "train", "dev", "test", "label2id.json"
    }  # fmt: skip


def test_files_that_are_not_there_are_told(tmp_path):
    write_tagged(tmp_path / "data")
    (tmp_path / "data/devel.tsv").unlink()
    result = call(tmp_path, "--do_lower_case")
    assert result.returncode == 0, result.stderr
    (line,) = [line for line in result.stdout.splitlines() if " has no " in line]
    assert line.endswith(f"has no devel.tsv or dev.tsv: {tmp_path / 'out'}/dev is not made")


def test_bad_line_is_told_with_its_number_and_exits_2(tmp_path):
    write_tagged(tmp_path / "data")
    (tmp_path / "data/devel.tsv").write_text("pox\tB-Disease\nand\n")
    result = call(tmp_path)
    assert result.returncode == 2 and "Traceback" not in result.stderr
    assert "devel.tsv:2: must hold a word and its tag" in " ".join(result.stderr.split())
