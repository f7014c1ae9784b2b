"""Tests of scripts/create_glue_tfrecords.py as a user runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.tf
pytest.importorskip("tensorflow")

from tests.modelzoo.bert.fine_tuning.made_data import write_sst2, write_vocabulary

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "create_glue_tfrecords.py"


def call(tmp_path, *arguments):
    data = write_sst2(tmp_path / "sst2")
    command = [sys.executable, SCRIPT, "--data_dir", data, "--output_dir", tmp_path / "out"]
    command += ["--vocab_file", write_vocabulary(tmp_path), "--processes", "1", *arguments]
    return subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=120)


def test_script_makes_records_of_both_uses_and_only_once(tmp_path):
    flags = ("--task", "Sst2DataProcessor", "--max_seq_length", "24")
    result = call(tmp_path, *flags)
    assert result.returncode == 0, result.stderr
    assert "64 rows, 64 records in 1 files" in result.stdout
    assert "21 rows, 21 records in 1 files" in result.stdout
    assert call(tmp_path, *flags).stdout.count("nothing left to do") == 2


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--text_columns", "sentence", "sentence"), "--text_columns: must name two different"),
        (("--text_columns", "a", "b", "c"), "--text_columns: must name one column, or two"),
        (("--max_seq_length", "2"), "--max_seq_length: must be at least 3, for [CLS] a [SEP]."),
    ],
)
def test_columns_and_lengths_that_hold_no_examples_are_told(tmp_path, flags, told):
    result = call(tmp_path, "--task", "Sst2DataProcessor", *flags)
    assert result.returncode == 2 and "Traceback" not in result.stderr
    assert told in " ".join(result.stderr.split())


def test_wrong_columns_are_told_and_exit_2(tmp_path):
    result = call(tmp_path, "--task", "MnliDataProcessor")
    assert result.returncode == 2 and "Traceback" not in result.stderr
    assert "train.tsv:1: the header must name the columns" in " ".join(result.stderr.split())
