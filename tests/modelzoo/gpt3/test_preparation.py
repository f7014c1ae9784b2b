"""Tests of preparation.py and modelzoo/common/preparation: text in, records out, nothing lost."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow.compat.v1")

from cerebras_tf.errors import ConfigError, DataError  # noqa: E402
from modelzoo.common.preparation import documents, records, tokenizer  # noqa: E402
from modelzoo.gpt3 import preparation  # noqa: E402
from modelzoo.gpt3.preparation import PreparationSettings, prepare  # noqa: E402

REAL = Path(__file__).resolve().parents[4] / "shared" / "data"
BYTES = PreparationSettings("ByteTokenizer", max_seq_length=8, write_remainder=True)
TEXTS = ["first document", "the second, é", "third"]


def write_inputs(folder):
    folder.mkdir()
    (folder / "a.txt").write_text(TEXTS[0])
    rows = "\n".join(json.dumps({"text": text}) for text in TEXTS[1:])
    (folder / "b.jsonl").write_text(rows + "\n\n")
    return str(folder)


@pytest.fixture
def inputs(tmp_path):
    return write_inputs(tmp_path / "in")


def read(folder, manifest):
    """Returns the records of all files in order, as dictionaries of lists."""
    found = []
    for entry in manifest["files"]:
        path = str(Path(folder) / entry["file"])
        assert records.sha256_of(path) == entry["sha256"]
        for data in tf.io.tf_record_iterator(path):
            features = tf.train.Example.FromString(data).features.feature
            found.append({k: list(v.int64_list.value) for k, v in features.items()})
    return found


def expected_tokens():
    return [t for text in TEXTS for t in [*text.encode(), 256]]


def test_records_hold_every_token_once_as_label_and_shift_by_one(inputs, tmp_path):
    manifest = prepare([inputs], tmp_path / "out", BYTES, processes=1)
    rows = read(tmp_path / "out", manifest)
    tokens = expected_tokens()
    labels = [t for r in rows for t, m in zip(r["labels"], r["input_mask"]) if m]
    ids = [t for r in rows for t, m in zip(r["input_ids"], r["input_mask"]) if m]
    assert labels == tokens[1:] and ids == tokens[:-1]
    assert all(len(r[name]) == 8 for r in rows for name in r)
    assert (manifest["documents"], manifest["tokens"]) == (3, len(tokens))
    assert manifest["records"] == len(rows) and manifest["vocab_size"] == 257


def test_records_do_not_depend_on_processes_or_batches(inputs, tmp_path, monkeypatch):
    one = prepare([inputs], tmp_path / "one", BYTES, processes=1)
    two = prepare([inputs], tmp_path / "two", BYTES, processes=2)
    monkeypatch.setattr(preparation, "BATCH_CHARACTERS", 1)
    small = prepare([inputs], tmp_path / "small", BYTES, processes=1)
    assert one["files"] == two["files"] == small["files"]


def test_stopped_run_goes_on_with_the_unit_it_stopped_in(inputs, tmp_path, monkeypatch):
    monkeypatch.setattr(preparation, "GROUP_BYTES", 1)
    whole = prepare([inputs], tmp_path / "whole", BYTES, 1)
    original, read_files = documents.read_documents, []

    def stopping(path, text_key):
        read_files.append(Path(path).name)
        if path.endswith("b.jsonl") and read_files.count("b.jsonl") == 1:
            raise KeyboardInterrupt
        return original(path, text_key)

    monkeypatch.setattr(documents, "read_documents", stopping)
    with pytest.raises(KeyboardInterrupt):
        prepare([inputs], tmp_path / "out", BYTES, 1)
    assert not (tmp_path / "out" / "manifest.json").exists()
    assert prepare([inputs], tmp_path / "out", BYTES, 1)["files"] == whole["files"]
    assert read_files == ["a.txt", "b.jsonl", "b.jsonl"]
    prepare([inputs], tmp_path / "out", BYTES, 1)
    assert len(read_files) == 3
    assert not [p for p in (tmp_path / "out").iterdir() if p.name.startswith(".")]


def test_other_settings_in_the_same_folder_are_refused(inputs, tmp_path):
    prepare([inputs], tmp_path / "out", BYTES, 1)
    with pytest.raises(ConfigError, match="made with another max_seq_length"):
        prepare([inputs], tmp_path / "out", dataclasses.replace(BYTES, max_seq_length=4), 1)


def test_files_hold_at_most_the_records_asked_for(inputs, tmp_path):
    manifest = prepare(
        [inputs], tmp_path / "out", dataclasses.replace(BYTES, files_per_record=2), 1
    )
    counts = [entry["records"] for entry in manifest["files"]]
    assert counts[:-1] == [2] * (len(counts) - 1) and len(counts) > 1


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{oops", "b.jsonl:2: must be a JSON object. Received: '{oops"),
        ('{"body": "x"}', "b.jsonl:2: .*'text'. Received: body. Name the key with --text_key"),
        ("[1]", "b.jsonl:2: .*Received: list"),
    ],
)
def test_bad_row_is_named_with_file_and_line(inputs, tmp_path, line, words):
    (tmp_path / "in" / "b.jsonl").write_text('{"text": "x"}\n' + line + "\n")
    with pytest.raises(DataError, match=words):
        prepare([inputs], tmp_path / "out", BYTES, 1)


def test_bytes_that_are_no_utf8_are_named_with_file_and_line(inputs, tmp_path):
    (tmp_path / "in" / "a.txt").write_bytes(b"fine\nbad \xff\n")
    with pytest.raises(DataError, match="a.txt:2: must be UTF-8 text. Received: byte 0xff"):
        prepare([inputs], tmp_path / "out", BYTES, 1)


def test_missing_input_is_named(tmp_path):
    with pytest.raises(DataError, match="absent: must be a file"):
        prepare([str(tmp_path / "absent")], tmp_path / "out", BYTES, 1)


def test_zstd_is_read_and_a_truncated_file_is_named(tmp_path):
    zstandard = pytest.importorskip("zstandard")
    path = tmp_path / "x.jsonl.zst"
    rows = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS)
    path.write_bytes(zstandard.ZstdCompressor().compress(rows.encode()))
    assert list(documents.read_documents(str(path))) == TEXTS
    noise = np.random.default_rng(0).integers(33, 126, 400_000).astype(np.uint8).tobytes()
    frame = zstandard.ZstdCompressor(write_checksum=True).compress(noise)
    path.write_bytes(b"\0" + frame)
    with pytest.raises(DataError, match="x.jsonl.zst:1: must be a whole zstd file"):
        list(documents.read_documents(str(path)))


def test_long_document_is_cut_only_before_words():
    text = "alpha beta  gamma\n\ndelta\nepsilon zeta " * 50
    pieces = documents.split_document(text, limit=30)
    assert "".join(pieces) == text and len(pieces) > 20
    for before, after in zip(pieces, pieces[1:]):
        assert not before[-1].isspace() and after[0] in " \n" and not after[1].isspace()


def make_gpt2_files(folder):
    """Trains a small byte pair encoding and writes it as the two files of GPT-2."""
    tokenizers = pytest.importorskip("tokenizers")
    trained = tokenizers.ByteLevelBPETokenizer()
    trained.train_from_iterator(
        ["the cat sat on the mat, the end"] * 5,
        vocab_size=280,
        min_frequency=2,
        special_tokens=["<|endoftext|>"],
        show_progress=False,
    )
    trained.save_model(str(folder))
    trained.save(str(folder / "tokenizer.json"))
    return str(folder / "vocab.json"), str(folder / "merges.txt"), trained


def test_gpt2_and_neox_files_give_the_tokens_of_their_library(tmp_path):
    vocab, merges, trained = make_gpt2_files(tmp_path)
    text = "the cat's mat"
    for files in ((vocab, merges), (merges, vocab)):
        loaded = tokenizer.load_tokenizer("GPT2Tokenizer", *files)
        assert loaded.encode(text).tolist() == trained.encode(text).ids
        assert loaded.eos_id == 0
    loaded = tokenizer.load_tokenizer("NeoXTokenizer", str(tmp_path / "tokenizer.json"))
    assert loaded.encode(text).tolist() == trained.encode(text).ids


def test_cut_document_has_the_tokens_of_the_whole(tmp_path):
    vocab, merges, _ = make_gpt2_files(tmp_path)
    loaded = tokenizer.load_tokenizer("GPT2Tokenizer", vocab, merges)
    text = "the cat  sat \n\n on the mat\nthe end 12 the's " * 40
    pieces = documents.split_document(text, limit=25)
    parts = np.concatenate([loaded.encode(piece) for piece in pieces])
    assert len(pieces) > 10
    np.testing.assert_array_equal(parts, loaded.encode(text))


def test_tokenizer_without_its_files_is_refused(tmp_path):
    pytest.importorskip("tokenizers")
    with pytest.raises(ConfigError, match="GPT2Tokenizer: needs its vocabulary"):
        tokenizer.load_tokenizer("GPT2Tokenizer")
    with pytest.raises(ConfigError, match="absent: must be a tokenizer file"):
        tokenizer.load_tokenizer("NeoXTokenizer", str(tmp_path / "absent"))


@pytest.mark.slow
def test_wikitext_with_the_gpt2_vocabulary_has_its_tokens(tmp_path):
    if not REAL.is_dir():
        pytest.skip(f"needs the real data in {REAL.name} beside the checkout")
    settings = PreparationSettings(
        "GPT2Tokenizer",
        str(REAL / "vocab/gpt2/vocab.bpe"),
        str(REAL / "vocab/gpt2/encoder.json"),
        max_seq_length=1024,
    )
    manifest = prepare([str(REAL / "wikitext-2/valid.txt")], tmp_path / "out", settings, 2)
    loaded = tokenizer.load_tokenizer(
        settings.tokenizer_type, settings.vocab_file, settings.encoder_file
    )
    text = (REAL / "wikitext-2/valid.txt").read_bytes().decode("utf-8")
    assert manifest["tokens"] == len(loaded.encode(text)) + 1
    assert manifest["records"] == (manifest["tokens"] - 1) // 1024
