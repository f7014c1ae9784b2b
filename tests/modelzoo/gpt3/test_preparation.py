"""Tests of preparation.py: text in, records out, nothing lost."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow.compat.v1")

from cerebras_tf.errors import ConfigError
from modelzoo.common.data.preparation import records
from modelzoo.common.tokenizers import tokenizers
from modelzoo.gpt3 import preparation
from modelzoo.gpt3.preparation import PreparationSettings, prepare
from tests.messages import raises
from tests.reading import records_of

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
    for entry in manifest["files"]:
        assert records.sha256_of(str(Path(folder) / entry["file"])) == entry["sha256"]
    return records_of(folder)


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
    assert manifest["counts"]["documents"] == 3 and manifest["counts"]["tokens"] == len(tokens)
    assert manifest["counts"]["records"] == len(rows) and manifest["vocab_size"] == 257


def test_changed_input_of_the_same_size_is_noticed_and_named(inputs, tmp_path):
    manifest = prepare([inputs], tmp_path / "out", BYTES, 1)
    changed = Path(inputs, "a.txt")
    changed.write_text(TEXTS[0].upper())
    with raises(ConfigError, "inputs", "a.txt"):
        prepare([inputs], tmp_path / "out", BYTES, 1)
    changed.write_text(TEXTS[0])  # what it was, at another time
    assert prepare([inputs], tmp_path / "out", BYTES, 1) == manifest


def test_overlapping_records_share_that_many_tokens(inputs, tmp_path):
    settings = dataclasses.replace(BYTES, overlap_size=3, write_remainder=False)
    manifest = prepare([inputs], tmp_path / "out", settings)
    rows, tokens = read(tmp_path / "out", manifest), expected_tokens()
    for number, row in enumerate(rows):
        assert row["input_ids"] == tokens[5 * number : 5 * number + 8]
        assert row["labels"] == tokens[5 * number + 1 : 5 * number + 9]
    assert len(rows) == (len(tokens) - 9) // 5 + 1


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"overlap_size": -1}, ("overlap_size", -1)),
        ({"overlap_size": 8}, ("overlap_size", 8)),
        ({"eos_id": 257}, ("eos_id", 256, 257)),
        ({"pad_id": -1}, ("pad_id",)),
        ({"max_seq_length": 1, "short_seq_prob": 1.0}, ("max_seq_length", 2)),
        ({"output_name": "a/b"}, ("--output_name",)),
    ],
)
def test_settings_that_make_no_records_are_refused(inputs, tmp_path, changes, facts):
    settings = dataclasses.replace(BYTES, **changes)
    with raises(ConfigError, *facts):
        prepare([inputs], tmp_path / "out", settings)


def test_progress_is_that_of_the_tokens_not_of_the_input(tmp_path, monkeypatch):
    monkeypatch.setattr(preparation, "PIECE_CHARACTERS", 100)
    monkeypatch.setattr(tokenizers, "ByteLevelTokenizer", tokenizers.ByteTokenizer)
    path, seen = tmp_path / "a.txt", []
    path.write_text("a bé" * 250)
    prepare([str(path)], tmp_path / "out", BYTES, on_progress=seen.append)
    assert sum(seen) == 1250 and len(seen) >= 10 and max(seen) <= 126


def test_short_records_lose_no_token_and_follow_the_seed(inputs, tmp_path):
    def make(name, **changes):
        settings = dataclasses.replace(BYTES, **changes)
        manifest = prepare([inputs], tmp_path / name, settings)
        return read(tmp_path / name, manifest)

    rows = make("short", short_seq_prob=0.5)
    labels = [t for r in rows for t, m in zip(r["labels"], r["input_mask"]) if m]
    assert labels == expected_tokens()[1:]
    lengths = [sum(r["input_mask"]) for r in rows]
    assert len(set(lengths[:-1])) > 1 and all(2 <= n <= 8 for n in lengths[:-1])
    assert all(set(r["labels"][n:]) <= {256} for r, n in zip(rows, lengths))
    assert rows == make("again", short_seq_prob=0.5)
    assert rows != make("other", short_seq_prob=0.5, seed=1)


def test_hdf5_holds_the_same_records_as_tfrecords(inputs, tmp_path):
    h5py = pytest.importorskip("h5py")
    rows = read(tmp_path / "tf", prepare([inputs], tmp_path / "tf", BYTES))
    settings = dataclasses.replace(BYTES, file_format="HDF5", files_per_record=3)
    manifest = prepare([inputs], tmp_path / "h5", settings)
    found = []
    for entry in manifest["files"]:
        with h5py.File(tmp_path / "h5" / entry["file"]) as file:
            assert file["data"].dtype == np.int32 and file["data"].compression == "gzip"
            assert file.attrs["n_examples"] == entry["records"] == len(file["data"])
            found += file["data"][:].tolist()
    assert found == [[r["input_ids"], r["input_mask"], r["labels"]] for r in rows]
    assert len(manifest["files"]) == -(-len(rows) // 3)


def test_text_is_cleaned_before_it_is_tokenized(tmp_path):
    pytest.importorskip("ftfy")
    (tmp_path / "a.txt").write_text("schÃ¶n @-@ er , ja")
    settings = dataclasses.replace(BYTES, ftfy=True, wikitext_detokenize=True)
    manifest = prepare([str(tmp_path / "a.txt")], tmp_path / "out", settings)
    wanted = "schön-er, ja".encode()
    assert manifest["counts"]["text_bytes"] == len(wanted)
    rows = read(tmp_path / "out", manifest)
    ids = [t for r in rows for t, m in zip(r["input_ids"], r["input_mask"]) if m]
    assert bytes(ids) == wanted


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
    loaded = tokenizers.load_tokenizer(
        settings.tokenizer_type, settings.vocab_file, settings.encoder_file
    )
    text = (REAL / "wikitext-2/valid.txt").read_bytes().decode("utf-8")
    assert manifest["counts"]["tokens"] == len(loaded.encode(text)) + 1
    assert manifest["counts"]["records"] == (manifest["counts"]["tokens"] - 1) // 1024
