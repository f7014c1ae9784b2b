"""Records of questions, marked words, and what prediction writes and scores."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow.compat.v1")

from cerebras_tf.errors import ConfigError, DataError
from modelzoo.bert.fine_tuning.question_answering.data import mark_question_words, read_windows
from modelzoo.bert.fine_tuning.question_answering.params import QuestionAnsweringInput
from modelzoo.bert.fine_tuning.question_answering.preparation import Settings, prepare
from modelzoo.common.fine_tuning.question_encoding import token_span
from modelzoo.common.fine_tuning.squad_predictions import (
    Answer,
    Choice,
    check_answers,
    choose_answers,
    score,
    write_answers,
)
from tests.messages import raises
from tests.modelzoo.bert.fine_tuning.made_data import VOCABULARY, write_vocabulary
from tests.modelzoo.bert.fine_tuning.question_answering.made_squad import articles, write_squad
from tests.reading import records_of

CLS, SEP = 2, 3
SECTION = {
    "data_processor": "QuestionAnsweringDataProcessor",
    "data_dir": "x",
    "vocab_size": 28,
    "max_sequence_length": 20,
    "batch_size": 8,
}


def test_words_of_the_question_are_marked_in_the_paragraph_alone():
    rows = [
        ([CLS, 7, 8, SEP, 9, 8, 8, 7, 9, SEP, 0, 0], [0, 0, 0, 0, 1, 2, 2, 2, 1, 1, 0, 0]),
        ([CLS, 5, SEP, CLS, SEP, 4, 5, 0, 6, 8, 7, SEP], [0, 0, 0, 1, 1, 1, 2, 1, 1, 1, 1, 1]),
    ]
    ids, marked = np.array(rows, np.int32).swapaxes(0, 1)
    mask = np.array([[1] * 10 + [0, 0], [1] * 12], np.int32)
    batch = {"input_ids": ids, "input_mask": mask, "segment_ids": np.minimum(marked, 1)}
    found = mark_question_words({name: tf.constant(value) for name, value in batch.items()})
    np.testing.assert_array_equal(found["segment_ids"], marked)
    for name in ("input_ids", "input_mask"):
        np.testing.assert_array_equal(found[name], batch[name])


def test_two_questions_with_one_id_are_refused(tmp_path):
    made = articles(2)
    made[1]["paragraphs"][0]["qas"][0]["id"] = name = made[0]["paragraphs"][0]["qas"][0]["id"]
    path = write_squad(tmp_path / "a.json", made)
    given = {"predict_file": str(path), "vocab_file": str(write_vocabulary(tmp_path))}
    with raises(DataError, "a.json", f"'{name}' twice"):
        read_windows(QuestionAnsweringInput(**SECTION, **given))


def settings(tmp_path, **keys):
    sizes = {"max_seq_length": 24, "doc_stride": 4, "max_query_length": 6, **keys}
    return Settings(str(write_vocabulary(tmp_path)), True, **sizes)


def test_records_point_at_the_answer(tmp_path):
    made = articles(9)
    path = write_squad(tmp_path / "a.json", made)
    manifest = prepare(str(path), tmp_path / "out", settings(tmp_path))
    rows = records_of(tmp_path / "out")
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
    rows = records_of(tmp_path / "out")
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
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(": its answer")[0] for line in lines] == [
        f"{path}: article 'article 0', question q0-1",
        f"{path}: article 'article 2', question q2-1",
    ]


def test_questions_without_an_answer_need_version_2(tmp_path):
    path = str(write_squad(tmp_path / "a.json", articles(4, with_negative=True)))
    with raises(DataError, "q1-1"):
        prepare(path, tmp_path / "out", settings(tmp_path))
    keys = settings(tmp_path, version_2_with_negative=True)
    counts = prepare(path, tmp_path / "both", keys)["counts"]
    assert counts["without_answer"] == 2 and counts["records"] == 8
    assert [r["end_positions"] for r in records_of(tmp_path / "both")].count([0]) == 2


def test_only_the_named_articles_are_taken(tmp_path):
    path = str(write_squad(tmp_path / "a.json", articles(5)))
    counts = prepare(path, tmp_path / "some", settings(tmp_path), articles=(1, 3))["counts"]
    assert counts["questions"] == 4
    for chosen, fact in (((7, 9), "7 to 9"), ((0, 6), "0 to 6")):
        with raises(DataError, " 5", fact):
            prepare(path, tmp_path / "none", settings(tmp_path), articles=chosen)


def section(tmp_path, made, **keys):
    return QuestionAnsweringInput(
        "QuestionAnsweringDataProcessor",
        16,
        4,
        data_dir="x",
        vocab_file=str(write_vocabulary(tmp_path)),
        predict_file=str(write_squad(tmp_path / "a.json", made)),
        do_lower_case=True,
        doc_stride=3,
        n_best_size=3,
        **keys,
    )


def perfect(windows):
    """Logits that point at the first true answer, and at [CLS] where a window has none."""
    rows = []
    for number, (question, (_, offsets), window) in enumerate(windows):
        starts, ends = np.zeros((2, 16), np.float32)
        starts[0] = ends[0] = 2.0
        for text, begin in question.answers:
            context = type("C", (), {"offsets": offsets})
            first, last = token_span(context, begin, begin + len(text))
            if window.start <= first and last < window.start + window.count:
                starts[first - window.start + window.first] = 5.0
                ends[last - window.start + window.first] = 5.0
        rows.append({"unique_ids": [number], "start_logits": starts, "end_logits": ends})
    return rows


def test_perfect_logits_score_100(tmp_path):
    made = articles(6)
    keys = section(tmp_path, made)
    windows, _ = read_windows(keys)
    assert len(windows) > 12  # some paragraphs are cut
    choices = choose_answers(windows, perfect(windows), keys)
    texts = write_answers(choices, keys, tmp_path / "predict")
    scores = score(windows, choices, texts, keys)
    assert scores["exact_match"] == scores["f1"] == 100.0 and scores["total"] == 12
    assert 0 < scores["closest-sentence/f1"] < 100.0
    written = json.loads((tmp_path / "predict" / "predictions.json").read_text())
    contexts = {p["qas"][0]["id"]: p["context"] for a in made for p in a["paragraphs"]}
    assert list(written) == list(contexts)
    assert all(written[key] in contexts[key] for key in written)  # in its own case
    nbest = json.loads((tmp_path / "predict" / "nbest_predictions.json").read_text())
    odds = json.loads((tmp_path / "predict" / "null_odds.json").read_text())
    for key, rows in nbest.items():
        assert rows[0]["text"] == written[key] and 1 <= len(rows) <= 3
        assert sum(row["probability"] for row in rows) == pytest.approx(1)
        assert odds[key] == pytest.approx(2 * 2.0 - 10.0)


@pytest.mark.parametrize(
    ("threshold", "empty", "answered"), [(0.0, True, True), (-7.0, True, False), (9.0, False, True)]
)
def test_threshold_decides_between_an_answer_and_none(tmp_path, threshold, empty, answered):
    keys = section(
        tmp_path,
        articles(6, with_negative=True),
        version_2_with_negative=True,
        null_score_diff_threshold=threshold,
    )
    windows, _ = read_windows(keys)
    choices = choose_answers(windows, perfect(windows), keys)
    texts = write_answers(choices, keys, tmp_path / "predict")
    scores = score(windows, choices, texts, keys)
    assert (scores["NoAns_exact"] == 100.0) == empty
    assert scores["HasAns_exact"] == (100.0 if answered else 0.0)
    assert scores["best_exact"] == scores["best_f1"] == 100.0
    assert -6.0 <= scores["best_exact_thresh"] < 4.0
    assert ("" in texts.values()) == empty


def test_best_scores_are_those_of_the_answers_by_expected_f1(tmp_path):
    keys = section(
        tmp_path,
        articles(6, with_negative=True),
        version_2_with_negative=True,
        answer_by="expected_f1",
    )
    windows, _ = read_windows(keys)
    choices = {}
    for question, _, _ in windows:
        likeliest, alike = Answer("alone", 1.0, 1.0, 50, 50), Answer("alike", 0.8, 0.8, 0, 4)
        true = [Answer(text, 0.9, 0.9, 0, 5) for text, _ in question.answers[:1]]
        found = [likeliest, *true, alike] if true else []
        choices[question.id] = Choice(found, Answer("", 0.0, 0.0))
    scores = score(windows, choices, write_answers(choices, keys, tmp_path / "predict"), keys)
    assert scores["f1"] == scores["best_f1"] == scores["best_exact"] == 100.0
    for text in (json.dumps(scores), (tmp_path / "predict" / "null_odds.json").read_text()):
        assert "Infinity" not in text


def test_question_counts_once_all_its_windows_are_predicted(tmp_path):
    keys = section(tmp_path, articles(6))
    windows, _ = read_windows(keys)
    rows = perfect(windows)
    several = next(n for n in range(1, len(windows)) if windows[n][0] is windows[n - 1][0])
    choices = choose_answers(windows, rows[:several], keys)
    assert windows[several][0].id not in choices
    assert set(choices) == {question.id for question, _, _ in windows[: several - 1]}


def test_scoring_questions_without_an_answer_needs_version_2(tmp_path):
    keys = section(tmp_path, articles(6, with_negative=True))
    windows, _ = read_windows(keys)
    without = {question.id for question, _, _ in windows if not question.answers}
    with raises(ConfigError, "version_2_with_negative", f"{len(without)} of 12"):
        check_answers(windows, keys)
    whole = section(tmp_path, articles(6, with_negative=True), version_2_with_negative=True)
    check_answers(read_windows(whole)[0], whole)
