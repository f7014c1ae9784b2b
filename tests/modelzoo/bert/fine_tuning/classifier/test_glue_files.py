"""Tests of classifier/glue_files.py: files of GLUE, and errors in bad ones."""

from __future__ import annotations

import pytest

from cerebras_tf.errors import DataError
from modelzoo.bert.fine_tuning.classifier.glue_files import TASKS, UNLABELED, find_files, read_rows
from modelzoo.bert.fine_tuning.classifier.params import ClassifierInput

SST2, MNLI = TASKS["Sst2DataProcessor"], TASKS["MnliDataProcessor"]


def write(tmp_path, text, name="train.tsv"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def test_columns_are_found_by_name(tmp_path):
    path = write(tmp_path, "gold_label\tid\tsentence2\tsentence1\nneutral\t4\tb c \ta\n")
    (row,) = read_rows(path, MNLI, True)
    assert row.texts == ("a", "b c") and MNLI.labels[row.label] == "neutral" and row.is_matched


def test_quotes_and_windows_line_ends_are_text_and_line_ends(tmp_path):
    path = write(tmp_path, '﻿sentence\tlabel\r\n"so it is" he said\t1\r\n'.encode())
    assert read_rows(path, SST2, True)[0].texts == ('"so it is" he said',)


def test_other_labels_and_columns_can_be_named(tmp_path):
    task = SST2.with_own(("q", "s"), "answer", ("yes", "no"))
    path = write(tmp_path, "q\ts\tanswer\nx\ty\tno\n")
    assert read_rows(path, task, True)[0].label == 1


def test_prediction_needs_no_label_column(tmp_path):
    path = write(tmp_path, "index\tsentence\n0\tfine\n")
    assert read_rows(path, SST2, False)[0].label == UNLABELED


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("sentence\tlabel\na\t1\nb\n", r"train\.tsv:3: must have 2 columns.*Received: 1"),
        ("sentence\tlabel\na\t2\n", r"train\.tsv:2: label must be one of 0, 1\. Received: '2'"),
        ("text\tlabel\na\t1\n", r"train\.tsv:1: the header must name .*sentence.*text, label"),
        (b"sentence\tlabel\n\xff\t1\n", r"train\.tsv:2: must be UTF-8 text\. Received: byte 0xff"),
        ("sentence\tlabel\n", r"train\.tsv: must hold rows"),
        ("sentence\tlabel\tlabel\na\t1\t0\n", r"train\.tsv:1: .* once\. Received: label 2 times"),
        ("sentence\tlabel\na\t1\n\nb\t1\n", r"train\.tsv:3: must have 2 columns"),
    ],
)
def test_bad_file_is_told_with_its_line(tmp_path, text, told):
    with pytest.raises(DataError, match=told):
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


def test_a_part_that_is_not_there_is_told(tmp_path):
    write(tmp_path, "x", "dev_matched.tsv")
    told = []
    assert find_files(str(tmp_path), "eval", told.append) == [f"{tmp_path}/dev_matched.tsv"]
    assert told == [
        f"{tmp_path} has no dev_mismatched.tsv: only {tmp_path}/dev_matched.tsv is read"
    ]


def test_a_label_given_twice_is_refused():
    task = MNLI.with_own(None, None, ("a", "b", "a"))
    assert list(task.faults(128)) == [("labels", "must differ from one another.")]


def test_mismatched_part_is_told_by_the_name_of_its_file(tmp_path):
    text = "sentence1\tsentence2\tgold_label\na\tb\tneutral\n"
    path = write(tmp_path, text, "dev_mismatched.tsv")
    assert not read_rows(path, MNLI, True)[0].is_matched


@pytest.mark.parametrize("name", [".", "nowhere"])
def test_missing_data_is_told(tmp_path, name):
    with pytest.raises(DataError, match=r"data_dir: must be a \.tsv file, or a folder with train"):
        find_files(str(tmp_path / name), "train")


@pytest.mark.parametrize(
    ("processor", "names"),
    [
        ("Sst2DataProcessor", {"SST-2.tsv"}),
        ("MnliDataProcessor", {"MNLI-m.tsv", "MNLI-mm.tsv"}),
        ("TsvDataProcessor", {"predictions.tsv", "mismatched_predictions.tsv"}),
    ],
)
def test_predictions_of_other_data_are_not_called_by_a_task_of_glue(processor, names):
    own = {"text_columns": ["a", "b"], "label_column": "c", "labels": ["x", "y"]}
    section = ClassifierInput(
        data_processor=processor, data_dir="rte", max_sequence_length=8, batch_size=2, **own
    )
    assert set(section.task.submission) == names
    assert section.task.labels == own["labels"]
