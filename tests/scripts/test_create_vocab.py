"""Tests of scripts/create_vocab.py as a user runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from modelzoo.common.tokenizers import tokenizers

pytest.importorskip("tokenizers")

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "create_vocab.py"


def call(*arguments):
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_script_trains_a_joint_vocabulary_and_says_what_it_wrote(tmp_path):
    (tmp_path / "a.en").write_text("a red wheel barrow\n" * 20)
    (tmp_path / "a.de").write_text("eine rote Schubkarre\n" * 20)
    flags = ["--algorithm", "unigram", "--vocab_size", 40, "--processes", 1]
    tokens = ["--special_tokens", "<pad>", "<unk>", "<s>", "</s>", "<sep>"]
    inputs = ["--input_files", tmp_path / "a.en", tmp_path / "a.de"]
    result = call(*inputs, *flags, *tokens, "--output_dir", tmp_path / "out")
    assert result.returncode == 0, result.stderr
    assert "from 40 lines" in result.stdout and "tokenizer.json in " in result.stdout
    loaded = tokenizers.load_tokenizer("JsonTokenizer", str(tmp_path / "out/tokenizer.json"))
    assert loaded.decode(loaded.encode("a rote barrow")) == "a rote barrow"
    assert (loaded.pad_id, loaded.unk_id, loaded.token_id("<sep>")) == (0, 1, 4)
    assert f"{loaded.vocab_size} tokens" in result.stdout


def test_missing_input_is_told_in_one_paragraph_and_exits_2(tmp_path):
    result = call("--input_files", tmp_path / "no", "--algorithm", "bpe", "--vocab_size", 99)
    assert result.returncode == 2 and "Traceback" not in result.stderr
    assert "no: must be a file, or a folder" in " ".join(result.stderr.split())
