"""Tests of modelzoo/bert/preparation.py: what stands in the records."""

from __future__ import annotations

import os

import numpy as np
import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow.compat.v1")

from cerebras_tf.errors import ConfigError, DataError
from modelzoo.bert import preparation
from modelzoo.bert.preparation import PreparationSettings, listed_inputs, prepare, read_documents
from tests.messages import raises
from tests.modelzoo.bert import corpus
from tests.reading import records_of

S, P = 32, 5


def run(tmp_path, name="out", processes=1, inputs=None, **options):
    """Prepares documents and returns the manifest and the records' features."""
    given = {
        "vocab_file": corpus.write_vocabulary(tmp_path),
        "do_lower_case": True,
        "max_seq_length": S,
        "max_predictions_per_seq": P,
        "multiple_docs_in_single_file": True,
        "dupe_factor": 2,
    }
    settings = PreparationSettings(**{**given, **options})
    inputs = inputs or [corpus.write_documents(tmp_path)]
    manifest = prepare(inputs, str(tmp_path / name), settings, processes)
    out = tmp_path / name
    if not options.get("disable_masking"):
        return manifest, [{n: np.array(x) for n, x in row.items()} for row in records_of(out)]
    paths = [str(out / entry["file"]) for entry in manifest["files"]]
    return manifest, [sequence(data) for p in paths for data in tf.io.tf_record_iterator(p)]


def sequence(data):
    lists = tf.train.SequenceExample.FromString(data).feature_lists.feature_list
    return [feature.bytes_list.value[0].decode() for feature in lists["tokens"].feature]


def restored(record):
    """The tokens before they were masked."""
    ids = record["input_ids"].copy()
    count = int(record["masked_lm_weights"].sum())
    ids[record["masked_lm_positions"][:count]] = record["masked_lm_ids"][:count]
    return ids[: int(record["input_mask"].sum())]


def document_tokens(tmp_path):
    """The tokens of each document, one after the other."""
    settings = PreparationSettings(
        corpus.write_vocabulary(tmp_path), True, multiple_docs_in_single_file=True
    )
    parts = [(corpus.write_documents(tmp_path), 0, None)]
    return [np.concatenate(document).tolist() for document in read_documents(parts, settings)]


def is_part(tokens, whole):
    length = len(tokens)
    return any(whole[i : i + length] == tokens for i in range(len(whole) - length + 1))


def test_pairs_have_the_shapes_and_marks_of_their_format(tmp_path):
    manifest, records = run(tmp_path)
    assert manifest["counts"]["documents"] == 8 and manifest["counts"]["sentences"] == 96
    assert manifest["counts"]["records"] == len(records) > 50
    assert manifest["vocab_size"] == len(corpus.VOCABULARY)
    for record in records:
        lengths = {name: len(values) for name, values in record.items()}
        assert lengths == {
            **dict.fromkeys(("input_ids", "input_mask", "segment_ids"), S),
            **dict.fromkeys(("masked_lm_positions", "masked_lm_ids", "masked_lm_weights"), P),
            "next_sentence_labels": 1,
        }
        ids, real = restored(record), int(record["input_mask"].sum())
        assert record["input_mask"].tolist() == [1] * real + [0] * (S - real)
        assert np.all(record["input_ids"][real:] == corpus.PAD)
        assert ids[0] == corpus.CLS and np.sum(ids == corpus.SEP) == 2 and ids[-1] == corpus.SEP
        middle = int(np.flatnonzero(ids == corpus.SEP)[0])
        segments = [0] * (middle + 1) + [1] * (real - middle - 1) + [0] * (S - real)
        assert record["segment_ids"].tolist() == segments


def test_masked_positions_are_counted_and_spare_the_marks(tmp_path):
    _, records = run(tmp_path)
    for record in records:
        ids = restored(record)
        weights = record["masked_lm_weights"]
        count = min(P, max(1, round(0.15 * len(ids))))
        assert weights.tolist() == [1] * count + [0] * (P - count)
        positions = record["masked_lm_positions"]
        assert np.all(np.diff(positions[:count]) > 0) and np.all(positions[count:] == 0)
        assert not set(ids[positions[:count]]) & {corpus.CLS, corpus.SEP}


def test_segments_are_parts_of_documents_that_follow_or_not(tmp_path):
    whole = document_tokens(tmp_path)
    labels = []
    for record in run(tmp_path, short_seq_prob=0.5)[1]:
        ids = restored(record)
        middle, _ = np.flatnonzero(ids == corpus.SEP)
        first, second = ids[1:middle].tolist(), ids[middle + 1 : -1].tolist()
        assert any(is_part(first, w) for w in whole) and any(is_part(second, w) for w in whole)
        labels.append(record["next_sentence_labels"][0])
    assert 0.3 < np.mean(labels) < 0.8  # more than half: what is one sentence long is random


def test_single_sequences_hold_every_token_of_each_document_once(tmp_path):
    options = {"mlm_only": True, "short_seq_prob": 0.0, "dupe_factor": 1}
    _, records = run(tmp_path, **options)
    assert all(set(r) & {"segment_ids", "next_sentence_labels"} == set() for r in records)
    found = sorted(tuple(restored(record)[1:-1]) for record in records)
    expected = [
        tuple(d[i : i + S - 2]) for d in document_tokens(tmp_path) for i in range(0, len(d), S - 2)
    ]
    assert found == sorted(expected)


def test_sequences_go_over_documents_and_overlap_where_asked(tmp_path):
    options = {"mlm_only": True, "disable_masking": True, "short_seq_prob": 0.0, "overlap_size": 4}
    options.update(allow_cross_document_examples=True, dupe_factor=None)
    _, records = run(tmp_path, **options)
    joined = [corpus.SEP]
    for document in document_tokens(tmp_path):
        joined += [*document, corpus.SEP]
    joined = [corpus.VOCABULARY[i] for i in joined[1:-1]]
    step = S - 2 - 4
    expected = [joined[i : i + S - 2] for i in range(0, len(joined) - 4, step)]
    assert sorted(r[1:-1] for r in records) == sorted(expected)
    assert all(r[0] == "[CLS]" and r[-1] == "[SEP]" for r in records)


def test_records_depend_on_the_seed_and_on_nothing_else(tmp_path):
    def digests(name, **options):
        return [entry["sha256"] for entry in run(tmp_path, name, **options)[0]["files"]]

    first = digests("first")
    assert first == digests("again", processes=2) != digests("other", seed=1)


def write_books(folder, count, sentences=40):
    """Writes `count` books of one letter each, in words of one to three of it, a file each."""
    folder.mkdir()
    for letter in corpus.LETTERS[:count]:
        lines = [" ".join(letter * (1 + (i + j) % 3) for j in range(5)) for i in range(sentences)]
        (folder / f"{letter}.txt").write_text("\n".join(lines), encoding="utf-8")
    return str(folder)


def letters_of(tokens):
    return {corpus.VOCABULARY[token].lstrip("#") for token in tokens}


@pytest.mark.parametrize("count", [2, 3, 7])
def test_unit_of_one_document_is_paired_with_those_of_others(tmp_path, monkeypatch, count):
    monkeypatch.setattr(preparation, "UNIT_BYTES", 1)  # each book is a unit by itself
    books = write_books(tmp_path / "books", count)
    manifest, records = run(tmp_path, inputs=[books], multiple_docs_in_single_file=False)
    assert manifest["counts"]["documents"] == count and len(manifest["files"]) == count
    met = {letter: set() for letter in corpus.LETTERS[:count]}
    for record in records:
        ids = restored(record)
        middle, _ = np.flatnonzero(ids == corpus.SEP)
        (first,), (second,) = letters_of(ids[1:middle]), letters_of(ids[middle + 1 : -1])
        assert (first != second) == bool(record["next_sentence_labels"][0])
        met[first] |= {second}
    assert all(len(others) == min(count, preparation.MIN_DOCUMENTS) for others in met.values())


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        ({"disable_masking": True}, ("mlm_only",)),
        ({"max_seq_length": 4}, ("max_seq_length", 5)),
        ({"overlap_size": 30}, ("overlap_size",)),
        ({"max_predictions_per_seq": 99}, ("max_predictions_per_seq",)),
        ({"min_short_seq_length": 1}, ("min_short_seq_length", 2)),
        ({"mlm_only": True, "document_separator_token": "<s>"}, ("document_separator_token",)),
    ],
)
def test_options_that_do_not_go_together_are_refused(options, facts, tmp_path):
    with raises(ConfigError, *facts):
        run(tmp_path, **options)


def test_progress_is_that_of_the_records_not_of_the_input(tmp_path, monkeypatch):
    seen, at = [], []
    pair = preparation.RecordMaker.pair
    monkeypatch.setattr(
        preparation.RecordMaker, "pair", lambda *args: at.append(sum(seen)) or pair(*args)
    )
    settings = PreparationSettings(
        corpus.write_vocabulary(tmp_path), True, multiple_docs_in_single_file=True
    )
    path = corpus.write_documents(tmp_path)
    prepare([path], str(tmp_path / "out"), settings, on_progress=seen.append)
    size = os.path.getsize(path)
    shares = np.array(at) / size
    assert sum(seen) == size and 0 < shares[0] < 0.1 and 0.8 < shares[-1] < 1
    assert np.abs(shares - np.linspace(0, 1, len(shares))).max() < 0.15


def test_listed_documents_are_read_and_missing_ones_named(tmp_path):
    (tmp_path / "a.txt").write_text("a")
    listing = tmp_path / "list.txt"
    listing.write_text("a.txt\n\n")
    assert listed_inputs([str(listing)], str(tmp_path)) == [str(tmp_path / "a.txt")]
    listing.write_text("a.txt\nb.txt\n")
    with raises(DataError, "list.txt:2"):
        listed_inputs([str(listing)], str(tmp_path))
