"""Tests of zero-shot tasks: what is scored, what scores mean, and what mistakes are told."""

from __future__ import annotations

import json
import math

import pytest

from cerebras_tf.errors import DataError
from modelzoo.common.evaluate.scoring import Score
from modelzoo.common.evaluate.tasks import LastWord, MultipleChoice, read_task


def write(path, *rows):
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


def choice_row(**changes):
    return {"context": "A dog says", "choices": ["woof", "meow"], "answer": 0, **changes}


def scores(*log_probs):
    return [Score(log_prob, False, 1) for log_prob in log_probs]


def test_choices_follow_the_context_after_one_space(tmp_path):
    rows = read_task(
        write(
            tmp_path / "a.jsonl",
            choice_row(),
            choice_row(context="A:\n"),
            choice_row(choices=[" x", "y"]),
            choice_row(context=""),
        ),
        "multiple_choice",
    )
    assert rows[0].texts() == [("A dog says", " woof"), ("A dog says", " meow")]
    assert rows[1].texts()[0] == ("A:\n", "woof")
    assert [text for _, text in rows[2].texts()] == [" x", " y"]
    assert rows[3].texts()[0] == ("", "woof")


def test_a_row_may_have_numbers_that_are_not_finite_where_nobody_reads_them(tmp_path):
    (row,) = read_task(
        write(tmp_path / "a.jsonl", choice_row(score=float("nan"))), "multiple_choice"
    )
    assert row.context == "A dog says"


def test_accuracies_take_the_likeliest_choice_by_itself_by_character_and_by_byte():
    row = MultipleChoice("a:1", "c", ("né", "a long choice"), 1)
    result = row.result(scores(-3.0, -6.0))
    assert [result[key] for key in ("choice", "choice_norm", "choice_bytes")] == [0, 1, 1]
    assert MultipleChoice.summary([result]) == {"acc": 0.0, "acc_norm": 1.0, "acc_bytes": 1.0}
    # Two characters of three bytes: -2.9 / 3 is more than -13 / 13, and -2.9 / 2 is less.
    result = row.result(scores(-2.9, -13.0))
    assert [result[key] for key in ("choice", "choice_norm", "choice_bytes")] == [0, 1, 0]


def test_the_last_word_is_scored_after_all_before_it(tmp_path):
    (row,) = read_task(write(tmp_path / "a.jsonl", {"text": " so it\n goes \n"}), "last_word")
    assert row.texts() == [("so it", "\n goes")]


def test_last_words_are_summed_up_as_accuracy_and_perplexity():
    row = LastWord("a:1", "so it", " goes")
    results = [
        row.result([Score(math.log(0.5), True, 2)]),
        row.result([Score(math.log(0.125), False, 2)]),
    ]
    summary = LastWord.summary(results)
    assert summary["acc"] == 0.5
    assert summary["perplexity"] == pytest.approx(4.0, rel=1e-4)


@pytest.mark.parametrize(
    "mode, row, message",
    [
        ("multiple_choice", {"choices": ["a", "b"], "answer": 0}, "context must be a text"),
        ("multiple_choice", choice_row(choices=["a"]), "choices must be a list of two texts"),
        ("multiple_choice", choice_row(choices=["a", 3]), "choices must be a list of two texts"),
        ("multiple_choice", choice_row(choices=["a", ""]), "choices must be a list of two texts"),
        ("multiple_choice", choice_row(choices=["a", "b\ud800"]), "must be text of whole charac"),
        ("multiple_choice", choice_row(answer=2), "answer must be .* 0 to 1. Received: 2"),
        ("multiple_choice", choice_row(answer="woof"), "answer must be the index"),
        ("last_word", {"text": "one"}, "text must have two words or more. Received: 'one'"),
        ("last_word", {"words": "a b"}, "text must be a text. Received: None among the keys words"),
    ],
)
def test_mistakes_are_told_with_file_and_line(tmp_path, mode, row, message):
    fine = choice_row() if mode == "multiple_choice" else {"text": "a b"}
    with pytest.raises(DataError, match=f"a.jsonl:2: {message}"):
        read_task(write(tmp_path / "a.jsonl", fine, row), mode)


def test_an_empty_task_is_refused(tmp_path):
    with pytest.raises(DataError, match="a.jsonl: must hold rows"):
        read_task(write(tmp_path / "a.jsonl"), "last_word")
