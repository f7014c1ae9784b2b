"""Tests of scripts/create_bert_tfrecords.py as a user runs it, up to training on its records."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from modelzoo.commands.main import run_command

pytestmark = pytest.mark.tf
ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "create_bert_tfrecords.py"
WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "red", "hens", "run", "far"]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *WORDS]
YAML = """\
model_name: bert
train_input:
    data_processor: {processor}
    data_dir: {folder}
    vocab_file: {vocabulary}
    max_sequence_length: 24
    max_predictions_per_seq: 4
    batch_size: 4
    buckets: 2
model:
    hidden_size: 8
    num_hidden_layers: 1
    num_heads: 2
    filter_size: 16
    use_segment_embedding: {nsp}
    disable_nsp: {no_nsp}
optimizer: {{optimizer_type: sgd, learning_rate: 0.1}}
runconfig: {{max_steps: 2}}
"""


def call(*arguments):
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def call_here(*arguments):
    """As `call`, in this process: faster."""
    run_command(["prepare", "bert", *map(str, arguments)])


@pytest.fixture
def vocabulary(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(VOCABULARY) + "\n")
    return path


@pytest.fixture
def text(tmp_path):
    sentence = " ".join(WORDS).capitalize() + "."
    path = tmp_path / "text.txt"
    path.write_text("\n\n".join([" ".join([sentence] * 12)] * 5))
    return path


def flags(text, vocabulary, folder):
    return [
        *("--input_dir", text, "--output_dir", folder, "--vocab_file", vocabulary),
        *("--do_lower_case", "--max_seq_length", 24, "--max_predictions_per_seq", 4),
        *("--multiple_docs_in_single_file", "--processes", 1),
    ]


@pytest.mark.parametrize(
    ("options", "processor"),
    [
        ((), "BertTfRecordsProcessor"),
        (("--mlm_only",), "BertMlmOnlyTfRecordsStaticMaskProcessor"),
        (("--mlm_only", "--disable_masking"), "BertMlmOnlyTfRecordsDynamicMaskProcessor"),
    ],
)
def test_script_makes_records_that_train(options, processor, text, vocabulary, tmp_path, capsys):
    pytest.importorskip("tensorflow")
    from modelzoo.common.train import run

    call_here(*flags(text, vocabulary, tmp_path / "out"), *options)
    assert "5 documents, 60 sentences, 780 tokens" in capsys.readouterr().out
    nsp = not options
    params = tmp_path / "params.yaml"
    params.write_text(
        YAML.format(
            processor=processor,
            folder=tmp_path / "out",
            vocabulary=vocabulary,
            nsp=nsp,
            no_nsp=not nsp,
        )
    )
    out = str(tmp_path / "model")
    run.main(["-m", "train", "-p", str(params), "-o", out, "--device", "/cpu:0"])
    assert (tmp_path / "model" / "model.ckpt-2.index").exists()


def test_missing_vocabulary_is_told_in_one_paragraph_and_exits_2(text, tmp_path):
    result = call(*flags(text, tmp_path / "none.txt", tmp_path / "out"))
    assert result.returncode == 2 and "Traceback" not in result.stderr
    assert "none.txt: must be a tokenizer file" in " ".join(result.stderr.split())


def test_no_input_is_told(vocabulary, tmp_path):
    from cerebras_tf.errors import ConfigError

    with pytest.raises(ConfigError, match="--input_dir or --metadata_files"):
        call_here("--vocab_file", vocabulary, "--output_dir", tmp_path / "out")
