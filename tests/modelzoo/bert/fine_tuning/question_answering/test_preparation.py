"""Tests of SQuAD's records: what they hold, and what becomes of bad answers and of none."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow.compat.v1")

from cerebras_tf.errors import DataError
from modelzoo.bert.fine_tuning.question_answering.preparation import Settings, prepare
from tests.modelzoo.bert.fine_tuning.made_data import VOCABULARY, write_vocabulary
from tests.modelzoo.bert.fine_tuning.question_answering.made_squad import articles, write_squad


def settings(tmp_path, **keys):
    sizes = {"max_seq_length": 24, "doc_stride": 4, "max_query_length": 6, **keys}
    return Settings(str(write_vocabulary(tmp_path)), True, **sizes)


def read(folder):
    rows = []
    for path in sorted(map(str, folder.glob("*.tfrecord*"))):
        for data in tf.io.tf_record_iterator(path):
            feature = tf.train.Example.FromString(data).features.feature
            rows.append({name: list(feature[name].int64_list.value) for name in feature})
    return rows


def test_records_point_at_the_answer(tmp_path):
    made = articles(9)
    path = write_squad(tmp_path / "a.json", made)
    manifest = prepare(str(path), tmp_path / "out", settings(tmp_path))
    rows = read(tmp_path / "out")
    answers = [p["qas"][0]["answers"][0]["text"] for a in made for p in a["paragraphs"]]
    assert manifest["counts"]["questions"] == len(rows) == 18
    assert len(manifest["files"]) == 2  # eight articles a file
    for row, answer in zip(rows, answers):
        (first,), (last,) = row["start_positions"], row["end_positions"]
        assert [VOCABULARY[token] for token in row["input_ids"][first : last + 1]] == [
            answer.lower()
        ]
        size = sum(row["input_mask"])
        assert row["input_mask"] == [1] * size + [0] * (24 - size)
        ones = [place for place, segment in enumerate(row["segment_ids"]) if segment]
        assert ones == list(range(6, size)) and row["input_ids"][5] == row["input_ids"][size - 1]


def test_windows_without_the_answer_are_counted(tmp_path):
    path = write_squad(tmp_path / "a.json", articles(6))
    keys = settings(tmp_path, max_seq_length=12)
    counts = prepare(str(path), tmp_path / "out", keys)["counts"]
    rows = read(tmp_path / "out")
    nowhere = [row for row in rows if row["start_positions"] == [0]]
    assert len(rows) > counts["questions"] == 12
    assert counts["windows_without_answer"] == len(nowhere) > 0
    assert len(rows) - len(nowhere) >= 12


def test_answer_that_stands_elsewhere_is_named_counted_and_left_out(tmp_path, capsys):
    made = articles(3)
    for article, start in ((0, 1000), (2, -1)):
        made[article]["paragraphs"][1]["qas"][0]["answers"][0]["answer_start"] = start
    path = write_squad(tmp_path / "a.json", made)
    counts = prepare(str(path), tmp_path / "out", settings(tmp_path))["counts"]
    assert counts["skipped_answers"] == 2 and counts["records"] == 4
    told = capsys.readouterr().err.splitlines()
    assert [line.partition(": its answer")[0] for line in told] == [
        f"{path}: article 'article 0', question q0-1",
        f"{path}: article 'article 2', question q2-1",
    ]


def test_questions_without_an_answer_need_version_2(tmp_path):
    path = str(write_squad(tmp_path / "a.json", articles(4, with_negative=True)))
    with pytest.raises(DataError, match="question q1-1: must have an answer"):
        prepare(path, tmp_path / "out", settings(tmp_path))
    keys = settings(tmp_path, version_2_with_negative=True)
    counts = prepare(path, tmp_path / "both", keys)["counts"]
    assert counts["without_answer"] == 2 and counts["records"] == 8
    assert [r["end_positions"] for r in read(tmp_path / "both")].count([0]) == 2


def test_only_the_named_articles_are_taken(tmp_path):
    path = str(write_squad(tmp_path / "a.json", articles(5)))
    counts = prepare(path, tmp_path / "some", settings(tmp_path), articles=(1, 3))["counts"]
    assert counts["questions"] == 4
    for chosen, told in (((7, 9), "7 to 9"), ((0, 6), "0 to 6")):
        with pytest.raises(DataError, match=f"must be some of its 5, .* Received: {told}"):
            prepare(path, tmp_path / "none", settings(tmp_path), articles=chosen)
