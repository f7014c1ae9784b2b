"""Tests of scripts/create_gpt_tfrecords.py as a user runs it, up to training on its records."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.tf
ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "create_gpt_tfrecords.py"
YAML = """\
model_name: gpt3
train_input:
    data_processor: GptTfRecordsProcessor
    data_dir: {folder}
    vocab_size: 257
    max_sequence_length: 16
    batch_size: 2
model: {{hidden_size: 8, num_hidden_layers: 1, num_heads: 2, filter_size: 16}}
optimizer: {{optimizer_type: sgd, learning_rate: 0.1}}
runconfig: {{max_steps: 2}}
"""


def call(*arguments):
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("so much depends upon a red wheel barrow glazed with rain water " * 20)
    return path


def test_script_makes_records_that_train(text, tmp_path):
    pytest.importorskip("tensorflow")
    from modelzoo.common.train import run

    flags = ["--tokenizer_type", "ByteTokenizer", "--max_seq_length", 16, "--processes", 1]
    result = call("--input_dir", text, "--output_dir", tmp_path / "out", *flags)
    assert result.returncode == 0, result.stderr
    assert "1 documents, 1260 text_bytes, 1261 tokens, 78 records in 1 files" in result.stdout
    params = tmp_path / "params.yaml"
    params.write_text(YAML.format(folder=tmp_path / "out"))
    out = str(tmp_path / "model")
    run.main(["-m", "train", "-p", str(params), "-o", out, "--device", "/cpu:0"])
    assert (tmp_path / "model" / "model.ckpt-2.index").exists()


def test_too_little_text_is_told_and_exits_2(text, tmp_path):
    flags = ["--tokenizer_type", "ByteTokenizer", "--processes", 1]
    result = call("--input_dir", text, "--output_dir", tmp_path / "out", *flags)
    assert result.returncode == 2
    assert "1261 tokens, 0 records. A record has 2048 tokens: add text" in " ".join(
        result.stderr.split()
    )


def test_missing_input_is_told_in_one_paragraph_and_exits_2(tmp_path):
    result = call("--input_dir", tmp_path / "no", "--tokenizer_type", "ByteTokenizer")
    assert result.returncode == 2 and "Traceback" not in result.stderr
    assert "must be a file, or a folder" in " ".join(result.stderr.split())
