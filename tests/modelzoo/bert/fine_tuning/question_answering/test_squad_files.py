"""Tests of reading SQuAD's json: what it holds, and what is told of files that are not of it."""

from __future__ import annotations

import json

import pytest

from cerebras_tf.errors import DataError
from modelzoo.bert.fine_tuning.question_answering.squad_files import read_articles
from tests.messages import names
from tests.modelzoo.bert.fine_tuning.question_answering.made_squad import articles, write_squad


def test_articles_paragraphs_and_answers_are_read(tmp_path):
    made = articles(3, with_negative=True)
    read = read_articles(str(write_squad(tmp_path / "a.json", made)))
    assert [article[0].article for article in read] == ["article 0", "article 1", "article 2"]
    for article, expected in zip(read, made):
        for paragraph, other in zip(article, expected["paragraphs"]):
            assert paragraph.context == other["context"]
            (asked,) = paragraph.questions
            assert asked.id == other["qas"][0]["id"]
            for text, start in asked.answers:
                assert paragraph.context[start : start + len(text)] == text
    assert read[1][1].questions[0].answers == ()


def test_byte_order_mark_is_no_json(tmp_path):
    path = write_squad(tmp_path / "a.json", articles(2))
    expected = read_articles(str(path))
    (tmp_path / "b.json").write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert read_articles(str(tmp_path / "b.json")) == expected


def test_answers_of_an_impossible_question_do_not_count(tmp_path):
    made = articles(1)
    made[0]["paragraphs"][0]["qas"][0]["is_impossible"] = True
    read = read_articles(str(write_squad(tmp_path / "a.json", made)))
    assert read[0][0].questions[0].answers == ()


def question(**changes):
    """A file with one question, as JSON text."""
    asked = {"question": "q", "id": "i", "answers": [], **changes}
    return json.dumps({"data": [{"title": "t", "paragraphs": [{"context": "a", "qas": [asked]}]}]})


def answer(start):
    return question(answers=[{"text": "a", "answer_start": start}])


ARTICLE = "article 't'"


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        (answer(0.9), [ARTICLE, "answer_start 0.9"]),
        (answer(True), [ARTICLE, "answer_start True"]),
        (answer([0]), [ARTICLE, "answer_start [0]"]),
        (question(is_impossible="false"), [ARTICLE, "is_impossible 'false'"]),
        (question(id=None), [ARTICLE, "id None"]),
        (question(id="\ud800"), [ARTICLE, "ud800"]),
        (question(question=" "), [ARTICLE, "question 'i'"]),
        (question(answers=None), [ARTICLE, "answers None"]),
        (question(answers=["a"]), [ARTICLE, "'a'"]),
        (question(answers=[{"text": "a"}]), [ARTICLE, "answer_start"]),
        ("{", ["a.json:1"]),
        ('{"a": "\n"}', ["column 8"]),
        (b"\x1f\x8b{}", ["a.json:1", "UTF-8", "0x8b"]),
        ("[]", ["SQuAD", "[]"]),
        ("[" * 3000, ["SQuAD"]),
        ('{"data": []}', ["SQuAD"]),
        ("{}", ["data"]),
        ('{"data": ["words"]}', ["article '0'", "words"]),
    ],
)
def test_malformed_file_is_refused(tmp_path, text, facts):
    path = tmp_path / "a.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DataError) as error:
        read_articles(str(path))
    assert names(error.value, "a.json", *facts)


def test_two_questions_of_one_id_are_refused(tmp_path):
    made = articles(3)
    made[2]["paragraphs"][1]["qas"][0]["id"] = "q0-1"
    with pytest.raises(DataError) as error:
        read_articles(str(write_squad(tmp_path / "a.json", made)))
    assert names(error.value, "'q0-1'")
