"""Tests of scripts/create_summarization_tfrecords.py as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.tf
SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "create_summarization_tfrecords.py"


def test_script_tells_what_it_made_and_what_it_left_out(tmp_path):
    pytest.importorskip("tensorflow")
    rows = [
        {"article": "a tale of rain and wheels", "highlights": "rain"},
        {"article": "", "highlights": "x"},
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = ["--tokenizer_type", "ByteTokenizer", "--max_seq_length", "40", "--processes", "1"]
    paths = ["--input_dir", str(tmp_path / "a.jsonl"), "--output_dir", str(tmp_path / "out")]
    command = [sys.executable, str(SCRIPT), *paths, *flags]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert "2 articles, 1 skipped_empty" in result.stdout
    assert "1 records in 1 files" in result.stdout
