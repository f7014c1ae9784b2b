"""Tests of what prediction writes and scores, from logits written by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytestmark = pytest.mark.tf
pytest.importorskip("tensorflow")

from cerebras_tf.errors import ConfigError
from modelzoo.bert.fine_tuning.question_answering.data import read_windows
from modelzoo.bert.fine_tuning.question_answering.encoding import token_span
from modelzoo.bert.fine_tuning.question_answering.params import QuestionAnsweringInput
from modelzoo.bert.fine_tuning.question_answering.prediction import (
    Answer,
    Choice,
    check_answers,
    choose_answers,
    score,
    write_answers,
)
from tests.modelzoo.bert.fine_tuning.made_data import write_vocabulary
from tests.modelzoo.bert.fine_tuning.question_answering.made_squad import articles, write_squad


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


def test_questions_without_an_answer_need_version_2(tmp_path):
    keys = section(tmp_path, articles(6, with_negative=True))
    windows, _ = read_windows(keys)
    without = {question.id for question, _, _ in windows if not question.answers}
    told = rf"version_2_with_negative must be True.*Received: {len(without)} of 12 have none"
    with pytest.raises(ConfigError, match=told):
        check_answers(windows, keys)
    whole = section(tmp_path, articles(6, with_negative=True), version_2_with_negative=True)
    check_answers(read_windows(whole)[0], whole)


def test_file_without_answers_is_not_scored(tmp_path):
    made = articles(2)
    for article in made:
        for paragraph in article["paragraphs"]:
            paragraph["qas"][0]["answers"] = []
    keys = section(tmp_path, made)
    windows, _ = read_windows(keys)
    choices = choose_answers(windows, perfect(windows), keys)
    check_answers(windows, keys)
    assert len(choices) == 4 and score(windows, choices, {}, keys) == {}
