"""Tests of scripts/create_bertsum_tfrecords.py as a user runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.modelzoo.bert.fine_tuning.extractive_summarization.made_articles import rows, write_jsonl
from tests.modelzoo.bert.fine_tuning.made_data import write_vocabulary

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "create_bertsum_tfrecords.py"


def call(*arguments):
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_script_makes_records(tmp_path):
    flags = ["--vocab_file", write_vocabulary(tmp_path), "--do_lower_case", "--processes", 1]
    path = write_jsonl(tmp_path / "a.jsonl", rows(5))
    flags += ["--max_sequence_length", 80, "--output_dir", tmp_path / "out"]
    result = call("--input_dir", path, *flags)
    assert result.returncode == 0, result.stderr
    assert "5 articles, 0 skipped_too_short, 0 skipped_without_label, 5 records" in result.stdout


def test_articles_that_are_all_too_short_are_told_and_exit_2(tmp_path):
    flags = ["--vocab_file", write_vocabulary(tmp_path), "--output_dir", tmp_path / "out"]
    path = write_jsonl(tmp_path / "a.jsonl", rows(2))
    flags += ["--processes", 1, "--min_sentences_per_sequence", 50]
    result = call("--input_dir", path, *flags)
    assert result.returncode == 2 and "Traceback" not in result.stderr
    told = " ".join(result.stderr.split())
    assert "2 skipped_too_short" in told and "Lower --min_sentences_per_sequence" in told
