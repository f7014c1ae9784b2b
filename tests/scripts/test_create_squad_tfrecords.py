"""Tests of scripts/create_squad_tfrecords.py as a user runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.modelzoo.bert.fine_tuning.made_data import write_vocabulary
from tests.modelzoo.bert.fine_tuning.question_answering.made_squad import articles, write_squad

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "create_squad_tfrecords.py"


def call(*arguments):
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_script_makes_records_and_names_bad_answers(tmp_path):
    made = articles(20)
    made[2]["paragraphs"][0]["qas"][0]["answers"][0]["answer_start"] = 999
    flags = ["--vocab_file", write_vocabulary(tmp_path), "--do_lower_case", "--max_seq_length", 24]
    flags += ["--input_file", write_squad(tmp_path / "a.json", made), "--processes", 1]
    result = call(*flags, "--output_dir", tmp_path / "out", "--articles", "0:10")
    assert result.returncode == 0, result.stderr
    assert "20 questions, 1 skipped_answers, 0 without_answer, " in result.stdout
    assert "19 records in 2 files" in result.stdout
    assert "article 'article 2', question q2-0: its answer must stand" in result.stderr
    assert (
        "nothing left to do"
        in call(*flags, "--output_dir", tmp_path / "out", "--articles", "0:10").stdout
    )


def test_missing_file_is_told_in_one_paragraph_and_exits_2(tmp_path):
    flags = ["--vocab_file", write_vocabulary(tmp_path), "--output_dir", tmp_path / "out"]
    result = call("--input_file", tmp_path / "no.json", *flags)
    assert result.returncode == 2 and "Traceback" not in result.stderr
    assert "no.json: must be SQuAD json" in " ".join(result.stderr.split())
