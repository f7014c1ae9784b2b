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


def write(tmp_path, text):
    path = tmp_path / "train.tsv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def test_empty_lines_part_sentences(tmp_path):
    path = write(tmp_path, "a\tO\nb\tB\r\n\n\nc\tI-Gene\n")
    found = [(s.words, s.tags) for s in read_sentences(path)]
    assert found == [(["a", "b"], ["O", "B"]), (["c"], ["I-Gene"])]


def test_lines_may_end_with_cr(tmp_path):
    path = write(tmp_path, "a\tO\rb\tB\r\rc\tI-Gene\r")
    found = [(s.words, s.tags) for s in read_sentences(path)]
    assert found == [(["a", "b"], ["O", "B"]), (["c"], ["I-Gene"])]


def test_columns_of_conll_are_read(tmp_path):
    path = write(tmp_path, "-DOCSTART- -X- O O\n\nEU NNP I-NP B-ORG\nrejects VBZ I-VP O\n")
    (sentence,) = read_sentences(path)
    assert sentence.words == ["EU", "rejects"] and sentence.tags == ["B-ORG", "O"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a\tO\nb\n", r"train\.tsv:2: must hold a word and its tag.*Received: 'b'"),
        ("a\tO\n\tO\nb\tO\n", r"train\.tsv:2: must hold a word and its tag.*Received: '\\tO'"),
        ("a\tO\n\nb\tE-Gene\n", r"train\.tsv:3: must hold a word and its tag"),
        (b"a\tO\n\xff\tO\n", r"train\.tsv:2: must be UTF-8 text\. Received: byte 0xff"),
        ("\n\n", r"train\.tsv: must hold sentences"),
        ("a\tO\rb\tO\n\nc\tO\n", r"train\.tsv:1: must hold one word.*a CR inside\. End all"),
    ],
)
def test_bad_file_is_told_with_its_line(tmp_path, text, told):
    with pytest.raises(DataError, match=told):
        read_sentences(write(tmp_path, text))


def test_labels_of_plain_tags_are_the_seven_of_the_original(tmp_path):
    sentences = read_sentences(write(tmp_path, "a\tO\nb\tB\nc\tI\n"))
    assert label_names(sentences) == ["[PAD]", "B", "I", "O", "X", "[CLS]", "[SEP]"]


def test_label_names_come_in_the_order_of_their_numbers(tmp_path):
    path = tmp_path / "label2id.json"
    path.write_text(json.dumps({"O": 2, "[PAD]": 0, "B": 1}))
    assert read_label_names(path) == ["[PAD]", "B", "O"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[PAD]\nB\nI\n", r"must be the label2id\.json"),
        ('{"B": 1, "I": 1}', "object from label to number"),
        ('["B", "I"]', "object from label to number"),
    ],
)
def test_another_file_than_label2id_is_told(tmp_path, text, told):
    path = tmp_path / "vocab.txt"
    path.write_text(text)
    with pytest.raises(ConfigError, match=told):
        read_label_names(path)
    path.unlink()
    with pytest.raises(DataError, match=r"vocab\.txt: label_vocab_file must be"):
        read_label_names(path)
