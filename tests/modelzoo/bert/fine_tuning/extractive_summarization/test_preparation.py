"""Tests of BERTSUM's records: labels, both kinds of files, what is left out and counted."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow.compat.v1")

from cerebras_tf.errors import DataError
from modelzoo.bert.fine_tuning.extractive_summarization.encoding import EncodingSettings
from modelzoo.bert.fine_tuning.extractive_summarization.preparation import prepare
from modelzoo.bert.fine_tuning.extractive_summarization.selection import summaries
from tests.modelzoo.bert.fine_tuning.extractive_summarization.made_articles import (
    rows,
    write_jsonl,
    write_story,
)
from tests.modelzoo.bert.fine_tuning.made_data import VOCABULARY, write_vocabulary


def settings(tmp_path, **keys):
    keys = {"max_sequence_length": 80, "max_cls_tokens": 9, **keys}
    return EncodingSettings(str(write_vocabulary(tmp_path)), True, **keys)


def read(folder):
    found = []
    for path in sorted(map(str, folder.glob("*.tfrecord*"))):
        for data in tf.io.tf_record_iterator(path):
            feature = tf.train.Example.FromString(data).features.feature
            row = {n: f.int64_list.value or f.float_list.value for n, f in feature.items()}
            found.append({name: np.array(values) for name, values in row.items()})
    return found


def test_labelled_sentences_are_the_highlights(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", rows(12))
    manifest = prepare(str(path), tmp_path / "out", settings(tmp_path))
    found = read(tmp_path / "out")
    assert manifest["counts"]["articles"] == len(found) == 12
    sep = VOCABULARY.index("[SEP]")
    for row in found:
        columns = [row[n][None] for n in ("input_ids", "cls_indices", "cls_weights", "labels")]
        labels = row["labels"][None].astype(float)
        ((ours, _),) = summaries(*columns, labels, sep_id=sep, top_k=None)
        highlights = row["highlight_ids"][None]
        ((_, theirs),) = summaries(*columns, labels, highlights, sep_id=sep, top_k=None)
        assert ours == theirs
        assert row["cls_weights"].sum() == (row["input_ids"] == VOCABULARY.index("[CLS]")).sum()
        assert row["input_mask"].sum() == (row["input_ids"] != 0).sum()  # 1 = token


def test_stories_make_the_records_of_their_rows(tmp_path):
    made = rows(3)
    (tmp_path / "stories").mkdir()
    for row in made:
        write_story(tmp_path / "stories" / f"{row['id']}.story", row)
    prepare(str(tmp_path / "stories"), tmp_path / "a", settings(tmp_path))
    path = write_jsonl(tmp_path / "a.jsonl", made)
    prepare(str(path), tmp_path / "b", settings(tmp_path))
    for ours, theirs in zip(read(tmp_path / "a"), read(tmp_path / "b")):
        for name, values in theirs.items():
            np.testing.assert_array_equal(ours[name], values, name)


def test_articles_without_enough_sentences_or_labels_are_counted(tmp_path):
    made = rows(4)
    made[0]["article"] = made[0]["article"].split("\n")[0]
    made[2]["highlights"] = "nothing shared"
    path = write_jsonl(tmp_path / "a.jsonl", made)
    counts = prepare(str(path), tmp_path / "out", settings(tmp_path))["counts"]
    assert counts == {
        "articles": 4,
        "skipped_too_short": 1,
        "skipped_without_label": 1,
        "records": 2,
    }


def test_bad_row_is_told_with_its_line(tmp_path):
    path = tmp_path / "a.jsonl"
    write_jsonl(path, [*rows(1), {"article": "x"}])
    with pytest.raises(DataError, match=r"a\.jsonl:2: .*'highlights'"):
        prepare(str(path), tmp_path / "out", settings(tmp_path))
