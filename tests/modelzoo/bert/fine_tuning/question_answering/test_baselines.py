"""Tests of answers that need no model."""

from __future__ import annotations

from modelzoo.bert.fine_tuning.question_answering.prediction import (
    BASELINES,
    closest_sentence,
    first_words,
    random_span,
)
from modelzoo.bert.fine_tuning.question_answering.squad_files import Question

CONTEXT = "It rained all day. A red barrow stood in the rain. Nobody came."


def asked(text, key="1"):
    return Question(key, text, ())


def test_span_depends_on_the_question_alone_and_has_three_words():
    spans = {random_span(CONTEXT, asked("what?", str(key))) for key in range(40)}
    assert all(len(span.split()) == 3 and span in CONTEXT for span in spans)
    assert len(spans) > 5
    assert random_span(CONTEXT, asked("what?")) == random_span(CONTEXT, asked("where?"))


def test_first_words_are_the_first():
    assert first_words(CONTEXT, asked("what?")) == "It rained all"


def test_closest_sentence_shares_most_words():
    assert closest_sentence(CONTEXT, asked("Which barrow stood there?")) == (
        "A red barrow stood in the rain."
    )
    assert closest_sentence(CONTEXT, asked("Why?")) == "It rained all day."


def test_short_paragraphs_are_answered_whole():
    assert {answer("Rain", asked("what?")) for answer in BASELINES.values()} == {"Rain"}
