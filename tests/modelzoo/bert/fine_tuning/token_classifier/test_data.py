"""Tagged files, labels and the records of sentences, in which no word is lost."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow.compat.v1")

from cerebras_tf.errors import ConfigError, DataError
from modelzoo.bert.fine_tuning.token_classifier.preparation import (
    SentenceEncoder,
    Settings,
    prepare,
)
from modelzoo.common.fine_tuning.tag_labels import (
    Sentence,
    label_names,
    read_label_names,
    read_sentences,
)
from tests.messages import raises
from tests.modelzoo.bert.fine_tuning.made_data import VOCABULARY, write_tagged, write_vocabulary
from tests.reading import records_of


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


@pytest.mark.parametrize("text", ["{} B\n\u00a0 O\n", "{}\tB\n\u00a0\tO\n", "{} B\r\u00a0 O\r"])
def test_a_no_break_space_is_a_character_of_a_word(tmp_path, text):
    word = "10\u00a0000\u2028\u3000\x0c"
    (sentence,) = read_sentences(write(tmp_path, text.format(word)))
    assert [sentence.words, sentence.tags] == [[word, "\u00a0"], ["B", "O"]]


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
    with raises(DataError, *facts):
        read_sentences(write(tmp_path, text))


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
        with raises(error_class, path, "label_vocab_file"):
            read_label_names(path)
        path.unlink(missing_ok=True)


SENTENCE = Sentence(["Acute", "fevers", "and", "pox", "\u200b"], ["B", "I", "O", "B", "O"])


def encoder(tmp_path, length):
    return SentenceEncoder(
        Settings(str(write_vocabulary(tmp_path)), True, length), label_names([SENTENCE])
    )


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
    for row in records_of(out / "train"):
        for label, word in zip(row["label_ids"], row["word_ids"]):
            if word >= 0:
                found[row["sentence_ids"][0], word] = names[label][0]
    sentences = read_sentences(data / "train.tsv")
    expected = {(s, w): t for s, one in enumerate(sentences) for w, t in enumerate(one.tags)}
    assert found == expected
    assert manifest["counts"]["sentences"] == len(sentences)
    assert manifest["counts"]["records"] == len(records_of(out / "train")) > len(sentences)


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
    with raises(ConfigError, "label2id.json"):
        prepare(str(data), "train", str(tmp_path / "out"), settings)
    assert json.loads((tmp_path / "out/label2id.json").read_text()) == names
