"""Tests of token_classifier/preparation.py: what the records hold, and that no word is lost."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow.compat.v1")

from cerebras_tf.errors import ConfigError, DataError
from modelzoo.bert.fine_tuning.token_classifier.labels import Sentence, label_names, read_sentences
from modelzoo.bert.fine_tuning.token_classifier.preparation import (
    SentenceEncoder,
    Settings,
    find_splits,
    prepare,
)
from tests.modelzoo.bert.fine_tuning.made_data import VOCABULARY, write_tagged, write_vocabulary

SENTENCE = Sentence(["Acute", "fevers", "and", "pox", "\u200b"], ["B", "I", "O", "B", "O"])


def encoder(tmp_path, length):
    return SentenceEncoder(
        Settings(str(write_vocabulary(tmp_path)), True, length), label_names([SENTENCE])
    )


def read(folder):
    """All records of a folder, as dictionaries of lists."""
    rows = []
    for path in sorted(folder.glob("*.tfrecords")):
        for data in tf.io.tf_record_iterator(str(path)):
            features = tf.train.Example.FromString(data).features.feature
            rows.append({name: list(f.int64_list.value) for name, f in features.items()})
    return rows


def test_first_piece_has_the_tag_and_the_others_x(tmp_path):
    (record,) = encoder(tmp_path, 12).records(SENTENCE, 7)
    tokens = [VOCABULARY[number] for number in record["input_ids"]]
    names = label_names([SENTENCE])
    labels = [names[number] for number in record["label_ids"]]
    assert list(zip(tokens, labels, record["word_ids"]))[:9] == [
        ("[CLS]", "[CLS]", -1),
        ("acute", "B", 0),
        ("fever", "I", 1),
        ("##s", "X", -1),
        ("and", "O", 2),
        ("pox", "B", 3),
        ("[UNK]", "O", 4),
        ("[SEP]", "[SEP]", -1),
        ("[PAD]", "[PAD]", -1),
    ]
    assert record["input_mask"].tolist() == [1] * 8 + [0] * 4
    assert record["segment_ids"].tolist() == [0] * 12 and record["sentence_ids"].tolist() == [7]


def test_long_sentence_becomes_several_records_cut_between_words(tmp_path):
    records = list(encoder(tmp_path, 5).records(SENTENCE, 0))
    words = [[int(w) for w in record["word_ids"] if w >= 0] for record in records]
    assert words == [[0, 1], [2, 3, 4]]


def test_every_word_of_the_files_is_in_the_records(tmp_path):
    data = write_tagged(tmp_path / "data")
    settings = Settings(str(write_vocabulary(tmp_path)), True, 8)
    out = tmp_path / "records"
    manifest = prepare(str(data), "train", str(out), settings)
    names = sorted(json.loads((out / "label2id.json").read_text()).items(), key=lambda i: i[1])
    found = {}
    for row in read(out / "train"):
        for label, word in zip(row["label_ids"], row["word_ids"]):
            if word >= 0:
                found[row["sentence_ids"][0], word] = names[label][0]
    sentences = read_sentences(data / "train.tsv")
    expected = {(s, w): t for s, one in enumerate(sentences) for w, t in enumerate(one.tags)}
    assert found == expected
    assert manifest["counts"]["sentences"] == len(sentences)
    assert manifest["counts"]["records"] == len(read(out / "train")) > len(sentences)


def test_labels_are_those_of_all_files_whichever_is_made(tmp_path):
    data = write_tagged(tmp_path / "data")
    (data / "test.tsv").write_text("pox\tB-Gene\n")
    settings = Settings(str(write_vocabulary(tmp_path)), True, 16)
    prepare(str(data), "dev", str(tmp_path / "out"), settings)
    names = json.loads((tmp_path / "out/label2id.json").read_text())
    assert list(names) == [
        "[PAD]", "B-Disease", "B-Gene", "I-Disease", "O", "X", "[CLS]", "[SEP]"
    ]  # fmt: skip
    assert np.array_equal(list(names.values()), np.arange(8))
    (data / "test.tsv").write_text("pox\tB-Plant\n")
    with pytest.raises(ConfigError, match="label2id.json: is there, made of other input"):
        prepare(str(data), "train", str(tmp_path / "out"), settings)
    assert json.loads((tmp_path / "out/label2id.json").read_text()) == names


def test_missing_files_are_told(tmp_path):
    with pytest.raises(DataError, match=r"folder with some of train\.tsv, devel\.tsv"):
        find_splits(str(tmp_path))
    (tmp_path / "train.tsv").write_text("a\tO\n")
    with pytest.raises(DataError, match=r"must have test\.tsv\. Received: .*train\.tsv"):
        prepare(str(tmp_path), "test", str(tmp_path), Settings("vocab.txt"))
    with pytest.raises(ConfigError, match="max_seq_length: must be at least 3"):
        prepare(str(tmp_path), "train", str(tmp_path), Settings("vocab.txt", max_seq_length=2))
