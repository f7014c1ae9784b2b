"""`cerebras-tf prepare translation`: from two texts to the batches of training."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow.compat.v1")
pytest.importorskip("tokenizers")

from cerebras_tf.config.schema import Report, build
from cerebras_tf.errors import ConfigError
from modelzoo.commands.main import run_command
from modelzoo.transformer import preparation
from modelzoo.transformer.data import PROCESSORS
from modelzoo.transformer.params import TransformerRecordsInput
from modelzoo.transformer.vocabulary import load_joint_tokenizer
from tests.messages import raises

SENTENCES = [f"a {word} house by the {word} sea" for word in ("red", "wide", "small", "old")] * 5
TRANSLATIONS = [sentence.replace("house", "Haus").replace("sea", "Meer") for sentence in SENTENCES]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parallel")
    (folder / "a.en").write_text("\n".join(SENTENCES) + "\n", encoding="utf-8")
    (folder / "a.de").write_text("\n".join(TRANSLATIONS) + "\n", encoding="utf-8")
    files = [str(folder / "a.en"), str(folder / "a.de")]
    size = ["--algorithm", "bpe", "--vocab_size", "80", "--output_dir", str(folder / "vocab")]
    run_command(["prepare", "vocab", "--input_files", *files, *size])
    return folder


def arguments(folder, output_dir, **others):
    given = {
        "source_file": folder / "a.en",
        "target_file": folder / "a.de",
        "tokenizer_file": folder / "vocab" / "tokenizer.json",
        "output_dir": output_dir,
        "processes": 1,
        **others,
    }
    return [part for name, value in given.items() for part in (f"--{name}", str(value))]


def run(argv):
    run_command(["prepare", "translation", *argv])


def test_records_are_the_same_whichever_way_lines_end(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(preparation, "UNIT_LINES", 6)
    for end in ("\n", "\r\n", "\r"):
        texts = {"source_file": SENTENCES, "target_file": TRANSLATIONS}
        for key, lines in texts.items():
            data = end.join([f"{line}\u2028\x85" for line in lines]).encode()
            (tmp_path / key).write_bytes(data)
        files = {key: tmp_path / key for key in texts}
        run(arguments(folder, tmp_path / repr(end), **files))
    made = [
        sorted(path.read_bytes() for path in tmp_path.glob(f"{end!r}/*.tfrecords"))
        for end in ("\n", "\r\n", "\r")
    ]
    assert len(made[0]) == 4 and made[0] == made[1] == made[2]


def test_records_hold_the_tokens_of_every_pair_in_order(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(preparation, "UNIT_LINES", 6)
    run(arguments(folder, tmp_path))
    assert "20 pairs" in capsys.readouterr().out
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    tokenizer = load_joint_tokenizer(str(folder / "vocab" / "tokenizer.json"))
    assert len(manifest["files"]) == 4 and manifest["counts"]["records"] == 20
    tree = {
        "data_processor": "TransformerTfRecordsProcessor",
        "data_dir": str(tmp_path),
        "src_vocab_size": tokenizer.vocab_size,
        "tgt_vocab_size": tokenizer.vocab_size,
        "src_max_sequence_length": 40,
        "tgt_max_sequence_length": 40,
        "batch_size": 4,
    }
    section = build(TransformerRecordsInput, tree, Report("test"))
    sources, targets = PROCESSORS[section.data_processor](section).tokens(training=True)
    assert [tokenizer.decode(row) for row in sources] == SENTENCES
    assert [tokenizer.decode(row) for row in targets] == TRANSLATIONS
    counts = manifest["counts"]
    assert counts["source_tokens"] == sum(map(len, sources))
    assert counts["target_tokens"] == sum(map(len, targets))


def test_a_vocabulary_with_other_special_tokens_is_refused(folder, tmp_path):
    size = ["--algorithm", "byte_bpe", "--vocab_size", "300", "--output_dir", str(tmp_path)]
    run_command(["prepare", "vocab", "--input_files", str(folder / "a.en"), *size])
    with raises(ConfigError, "0 to 3", "<pad>"):
        run(arguments(folder, tmp_path / "out", tokenizer_file=tmp_path / "tokenizer.json"))
