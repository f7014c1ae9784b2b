"""Tests of token_classifier/labels.py: tagged files, label2id.json, and what bad ones are told."""

from __future__ import annotations

import json

import pytest

from cerebras_tf.errors import ConfigError, DataError
from modelzoo.bert.fine_tuning.token_classifier.labels import (
    label_names,
    read_label_names,
    read_sentences,
)
from tests.messages import names


def write(tmp_path, text):
    path = tmp_path / "train.tsv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def test_empty_lines_part_sentences(tmp_path):
    path = write(tmp_path, "a\tO\nb\tB\r\n\n\nc\tI-Gene\n")
    found = [(s.words, s.tags) for s in read_sentences(path)]
    assert found == [(["a", "b"], ["O", "B"]), (["c"], ["I-Gene"])]


def test_columns_of_conll_are_read(tmp_path):
    path = write(tmp_path, "-DOCSTART- -X- O O\n\nEU NNP I-NP B-ORG\nrejects VBZ I-VP O\n")
    (sentence,) = read_sentences(path)
    assert sentence.words == ["EU", "rejects"] and sentence.tags == ["B-ORG", "O"]


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("a\tO\nb\n", ["train.tsv:2", "'b'"]),
        ("a\tO\n\tO\nb\tO\n", ["train.tsv:2", "'\\tO'"]),
        ("a\tO\n\nb\tE-Gene\n", ["train.tsv:3"]),
        (b"a\tO\n\xff\tO\n", ["train.tsv:2", "UTF-8", "0xff"]),
        ("\n\n", ["train.tsv"]),
        ("a\tO\rb\tO\n\nc\tO\n", ["train.tsv:1", "CR"]),
    ],
)
def test_bad_file_is_refused_with_its_line(tmp_path, text, facts):
    with pytest.raises(DataError) as error:
        read_sentences(write(tmp_path, text))
    assert names(error.value, *facts)


def test_labels_of_plain_tags_are_the_seven_of_the_original(tmp_path):
    sentences = read_sentences(write(tmp_path, "a\tO\nb\tB\nc\tI\n"))
    assert label_names(sentences) == ["[PAD]", "B", "I", "O", "X", "[CLS]", "[SEP]"]


def test_label_names_come_in_the_order_of_their_numbers(tmp_path):
    path = tmp_path / "label2id.json"
    path.write_text(json.dumps({"O": 2, "[PAD]": 0, "B": 1}))
    assert read_label_names(path) == ["[PAD]", "B", "O"]


@pytest.mark.parametrize("text", ["[PAD]\nB\nI\n", '{"B": 1, "I": 1}', '["B", "I"]'])
def test_another_file_than_label2id_is_refused(tmp_path, text):
    path = tmp_path / "vocab.txt"
    path.write_text(text)
    for error_class in (ConfigError, DataError):
        with pytest.raises(error_class) as error:
            read_label_names(path)
        assert names(error.value, path, "label_vocab_file")
        path.unlink(missing_ok=True)
