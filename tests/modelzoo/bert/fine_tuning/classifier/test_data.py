"""GLUE's files, the layout of pairs, and records that give the batches of the files."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow.compat.v1")

from cerebras_tf.errors import DataError
from modelzoo.bert.fine_tuning.classifier.data import PROCESSORS
from modelzoo.bert.fine_tuning.classifier.params import ClassifierInput, GlueRecordsInput
from modelzoo.bert.fine_tuning.classifier.preparation import Settings, prepare
from modelzoo.common.fine_tuning.glue_files import (
    TASKS,
    UNLABELED,
    PairEncoder,
    find_files,
    read_rows,
    truncate_longest,
)
from tests.messages import names, raises
from tests.modelzoo.bert.fine_tuning.made_data import VOCABULARY, write_mnli, write_vocabulary
from tests.reading import batches_of

SST2, MNLI = TASKS["Sst2DataProcessor"], TASKS["MnliDataProcessor"]


def write(tmp_path, text, name="train.tsv"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def test_columns_are_found_by_name(tmp_path):
    path = write(tmp_path, "gold_label\tid\tsentence2\tsentence1\nneutral\t4\tb c \ta\n")
    (row,) = read_rows(path, MNLI, True)
    assert row.texts == ("a", "b c") and MNLI.labels[row.label] == "neutral" and row.is_matched


def test_quotes_and_windows_line_ends_are_text_and_line_ends(tmp_path, caplog):
    path = write(tmp_path, '﻿sentence\tlabel\r\n"so it is" he said\t1\r\n'.encode())
    assert read_rows(path, SST2, True)[0].texts == ('"so it is" he said',) and not caplog.text
    path = write(tmp_path, 'sentence\tlabel\n"so ""it"" is"\t1\n')
    assert read_rows(path, SST2, True)[0].texts == ('"so ""it"" is"',)
    assert names(caplog.text, f"{path}:2", "CSV")


def test_other_labels_and_columns_can_be_named(tmp_path):
    task = SST2.with_overrides(("q", "s"), "answer", ("yes", "no"))
    path = write(tmp_path, "q\ts\tanswer\nx\ty\tno\n")
    assert read_rows(path, task, True)[0].label == 1


def test_prediction_needs_no_label_column(tmp_path):
    path = write(tmp_path, "index\tsentence\n0\tfine\n")
    assert read_rows(path, SST2, False)[0].label == UNLABELED


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("sentence\tlabel\na\t1\nb\n", ("train.tsv:3", "2 columns", "Received: 1")),
        ("sentence\tlabel\na\t2\n", ("train.tsv:2", "0, 1", "'2'")),
        ("text\tlabel\na\t1\n", ("train.tsv:1", "sentence", "text, label")),
        (b"sentence\tlabel\n\xff\t1\n", ("train.tsv:2", "UTF-8", "0xff")),
        ("sentence\tlabel\n", ("train.tsv", "rows")),
        ("sentence\tlabel\tlabel\na\t1\t0\n", ("train.tsv:1", "label 2 times")),
        ("sentence\tlabel\na\t1\n\nb\t1\n", ("train.tsv:3", "2 columns")),
        ("sentence\tlabel\n \t1\n", ("train.tsv:2", "sentence", "text")),
    ],
)
def test_bad_file_is_refused_with_its_line(tmp_path, text, facts):
    with raises(DataError, *facts):
        read_rows(write(tmp_path, text), SST2, True)


def test_files_of_a_folder_follow_the_use(tmp_path):
    for name in ("train", "dev_matched", "dev_mismatched"):
        write(tmp_path, "x", f"{name}.tsv")
    folder = str(tmp_path)
    names = {use: [f.rsplit("/", 1)[1] for f in find_files(folder, use)] for use in ("train",)}
    assert names["train"] == ["train.tsv"]
    parts = [f"{folder}/dev_matched.tsv", f"{folder}/dev_mismatched.tsv"]
    assert find_files(folder, "eval") == find_files(folder, "predict") == parts
    assert find_files(parts[:1], "train") == parts[:1]


def encode(tmp_path, texts, length=32):
    encoder = PairEncoder(str(write_vocabulary(tmp_path)), True, length)
    return encoder.encode([texts])[0]


def tokens(example):
    return " ".join(VOCABULARY[number] for number in example.ids)


def test_single_sentence_is_between_cls_and_sep(tmp_path):
    example = encode(tmp_path, ("The Film was DULL",))
    assert tokens(example) == "[CLS] the film was dull [SEP]" and example.first == 6


def test_pair_has_a_sep_after_each_and_a_segment_each(tmp_path):
    example = encode(tmp_path, ("raining", "a story"))
    assert (
        tokens(example) == "[CLS] rain ##ing [SEP] a story [SEP]"
        and example.segments.tolist() == [0] * 4 + [1] * 3
    )


def reference_truncation(a, b, limit):
    """The rule of Devlin et al.: token by token from the longer one, of equal ones the second."""
    while a + b > limit:
        if a > b:
            a -= 1
        else:
            b -= 1
    return [a, b]


@pytest.mark.parametrize(("a", "b", "limit"), [(5, 9, 10), (9, 5, 10), (7, 7, 7), (2, 3, 9)])
def test_longer_text_of_a_pair_is_truncated(a, b, limit):
    assert truncate_longest([a, b], limit) == reference_truncation(a, b, limit)


def test_truncated_examples_fill_the_row(tmp_path):
    example = encode(tmp_path, ("the film was a story of rain", "dull"), length=8)
    assert tokens(example) == "[CLS] the film was a [SEP] dull [SEP]"
    assert len(encode(tmp_path, ("the " * 50,), length=8).ids) == 8


SHAPE = {"max_sequence_length": 24, "batch_size": 5, "shuffle": False, "repeat": False}


def batches(section):
    """All batches of an evaluation but the first."""
    processor = PROCESSORS[section.data_processor](section)
    return batches_of(lambda: processor.create_dataset(False, 1))


@pytest.mark.parametrize("buckets", [None, (8, 16)])
def test_records_give_the_batches_that_the_files_give(tmp_path, buckets):
    data, vocab = write_mnli(tmp_path / "mnli"), str(write_vocabulary(tmp_path))
    settings = Settings(vocab, "MnliDataProcessor", max_seq_length=24)
    manifest = prepare(str(data), "eval", str(tmp_path / "records"), settings)
    assert manifest["counts"]["records"] == 48
    keys = {**SHAPE, "buckets": buckets}
    files = ClassifierInput("MnliDataProcessor", str(data), vocab_file=vocab, **keys)
    records = GlueRecordsInput(
        "GlueTfRecordsProcessor",
        str(tmp_path / "records/eval"),
        vocab_size=28,
        has_parts=True,
        n_parallel_reads=1,
        **keys,
    )
    ours, theirs = batches(records), batches(files)
    assert len(ours) == len(theirs) == 9 and len(ours[-1][1]) == 3
    for (features, labels), (expected, expected_labels) in zip(ours, theirs):
        assert set(features) == set(expected)
        np.testing.assert_array_equal(labels, expected_labels)
        for name, value in expected.items():
            np.testing.assert_array_equal(features[name], value, err_msg=name)
