"""Tests of the choice of answers from logits written by hand."""

from __future__ import annotations

import numpy as np
import pytest

from modelzoo.bert.fine_tuning.question_answering.encoding import Window
from modelzoo.bert.fine_tuning.question_answering.prediction import (
    Answer,
    Choice,
    choose,
    expected_f1,
)

CONTEXT = "Rain fell, warm and grey."
OFFSETS = np.array([[0, 4], [5, 9], [9, 10], [11, 15], [16, 19], [20, 24], [24, 25]])
HEAD = 4  # [CLS] what fell [SEP]


def window(start=0, count=7, most=None):
    ids = np.zeros(HEAD + count + 1, np.int32)
    most = np.ones(count, bool) if most is None else np.array(most)
    return Window(ids, HEAD, start, count, most)


def logits(count=7, **values):
    """Zeros but for ``cls`` and ``t<number of a token of the part>``; padded by two."""
    row = np.full(HEAD + count + 3, -9.0)
    for name, value in values.items():
        row[0 if name == "cls" else HEAD + int(name[1:])] = value
    return row


def texts(choice):
    return [answer.text for answer in choice.best]


def test_likeliest_span_is_the_answer():
    starts, ends = logits(t3=5.0, t0=4.0), logits(t5=3.0, t0=2.0)
    choice = choose(CONTEXT, OFFSETS, [(window(), starts, ends)], 3, 30)
    assert texts(choice) == ["warm and grey", "Rain fell, warm and grey", "Rain"]
    assert choice.best[0] == Answer("warm and grey", 5.0, 3.0, 3, 5)


def test_end_before_start_and_long_answers_are_left_out():
    starts, ends = logits(t3=5.0, t0=4.0), logits(t1=9.0, t5=3.0)
    choice = choose(CONTEXT, OFFSETS, [(window(), starts, ends)], 4, 2)
    assert texts(choice)[0] == "Rain fell"
    assert "warm and grey" not in texts(choice)
    spans = {text: CONTEXT.index(text) for text in texts(choice)}
    assert all(len(text.replace(",", " ,").split()) <= 2 for text in spans)


def test_question_and_padding_are_no_answers():
    starts, ends = logits(t3=1.0), logits(t3=1.0)
    starts[[1, 2, -1]] = ends[[1, 2, -1]] = 50.0
    choice = choose(CONTEXT, OFFSETS, [(window(), starts, ends)], 5, 30)
    assert texts(choice)[0] == "warm"


def test_token_begins_answers_only_where_it_has_most_context():
    """The second window is surer of "warm", but the first one shows more of what is around it."""
    first = window(0, 5, [True] * 5)
    second = window(3, 4, [False, False, True, True])
    parts = [
        (first, logits(5, t3=2.0), logits(5, t3=2.0)),
        (second, logits(4, t0=8.0, t2=3.0), logits(4, t0=8.0, t2=3.0)),
    ]
    choice = choose(CONTEXT, OFFSETS, parts, 2, 30)
    assert texts(choice)[0] == "grey" and choice.best[0].score == 6.0
    assert Answer("warm", 2.0, 2.0, 3, 3) in choice.best


def test_no_answer_is_scored_in_the_window_where_it_is_least_likely():
    parts = [
        (window(), logits(cls=1.0, t3=2.0), logits(cls=1.0, t3=2.0)),
        (window(), logits(cls=5.0), logits(cls=5.0)),
    ]
    choice = choose(CONTEXT, OFFSETS, parts, 3, 30)
    assert choice.null == Answer("", 1.0, 1.0)
    assert choice.null_odds == 2.0 - 4.0
    assert choice.text(version_2=True) == "warm"
    assert choice.text(version_2=True, threshold=-2.5) == ""
    assert choice.text(version_2=False, threshold=-2.5) == "warm"


def test_equal_texts_are_listed_once():
    context, offsets = "rain rain", np.array([[0, 4], [5, 9]])
    starts, ends = logits(2, t0=3.0, t1=2.0), logits(2, t0=3.0, t1=2.0)
    choice = choose(context, offsets, [(window(0, 2), starts, ends)], 5, 1)
    assert choice.best == [Answer("rain", 3.0, 3.0, 0, 0)]


def test_probabilities_are_the_softmax_of_what_is_listed():
    choice = Choice([Answer("a", 2.0, 1.0), Answer("b", 1.0, 1.0)], Answer("", 2.0, 0.5))
    listed = choice.listed(version_2=True)
    assert [row["text"] for row in listed] == ["a", "", "b"]
    shares = np.exp([3.0, 2.5, 2.0])
    assert [row["probability"] for row in listed] == pytest.approx(list(shares / shares.sum()))
    assert [row["text"] for row in choice.listed()] == ["a", "b"]


def test_paragraph_without_tokens_has_the_empty_answer():
    empty = (window(0, 0, []), logits(0, cls=1.0), logits(0, cls=1.0))
    choice = choose("", np.zeros((0, 2), int), [empty], 3, 30)
    assert choice.text() == "" and choice.listed()[0]["probability"] == 1.0


def test_an_answer_that_overlaps_likely_ones_may_be_taken_for_the_likeliest():
    likely = [Answer("warm", np.log(0.4), 0.0, 3, 3)]
    likely += [
        Answer(text, np.log(0.3), 0.0, 0, last) for last, text in [(1, "Rain fell"), (2, ",")]
    ]
    np.testing.assert_allclose(expected_f1(likely), [0.4, 0.3 + 0.3 * 0.8, 0.3 + 0.3 * 0.8])
    choice = Choice(likely, Answer("", -1.0, 0.0))
    assert choice.text() == "warm"
    assert choice.text(by_expected_f1=True) == "Rain fell"
    assert choice.text(True, -9.0, by_expected_f1=True) == ""


def test_expected_f1_is_the_mean_over_right_answers_of_the_f1_of_their_tokens():
    random = np.random.default_rng(0)
    answers = [
        Answer(str(n), *random.normal(size=2), first, first + int(random.integers(4)))
        for n, first in enumerate(random.integers(0, 9, 12).tolist())
    ]
    tokens = [set(range(answer.first, answer.last + 1)) for answer in answers]
    shares = np.exp([answer.score for answer in answers])
    f1 = [[2 * len(a & b) / (len(a) + len(b)) for b in tokens] for a in tokens]
    np.testing.assert_allclose(expected_f1(answers), f1 @ shares / shares.sum())
