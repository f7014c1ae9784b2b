"""Tests of reading SQuAD's json: what it holds, and what is told of files that are not of it."""

from __future__ import annotations

import json

import pytest

from cerebras_tf.errors import DataError
from modelzoo.bert.fine_tuning.question_answering.squad_files import read_articles
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


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"answers": [{"text": "a", "answer_start": 0.9}]}, "answer_start 0.9 is no whole number"),
        ({"is_impossible": "false"}, "is_impossible .false. is neither true nor false"),
        ({"id": None}, "id null is no text"),
        ({"id": [1]}, r"id \[1\] is no text"),
        ({"id": True}, "id true is no text"),
        ({"question": " "}, "question .i. has no words"),
        ({"id": ["é" * 50]}, r'id \["' + "é" * 38 + r" \.\.\. is no text"),
        ({"is_imposible": True}, "'is_imposible' where 'is_impossible' is looked for"),
        ({"answers": [{"text": "a", "answer_start": True}]}, "answer_start true is no whole"),
        ({"answers": None}, "null is no list"),
        ({"answers": ["a"]}, ".a. is no object"),
        ({"answers": [{"text": "a", "answer_start": [0]}]}, r"answer_start \[0\] is no whole"),
        ({"answers": [{"text": "a"}]}, "an object without 'answer_start'"),
    ],
)
def test_values_of_another_kind_are_told_with_their_article(tmp_path, changes, told):
    asked = {"question": "q", "id": "i", "answers": [], **changes}
    article = {"title": "t", "paragraphs": [{"context": "a", "qas": [asked]}]}
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"data": [article]}))
    with pytest.raises(DataError, match=f"a.json: article 't'.*{told}"):
        read_articles(str(path))


@pytest.mark.parametrize("key", ["gold_answers", "answer", "Answers"])
def test_answers_under_another_name_are_told(tmp_path, key):
    asked = {"question": "q", "id": "i", key: [], "plausible_answers": []}
    made = [{"title": "t", "paragraphs": [{"context": "a", "qas": [asked]}]}]
    (tmp_path / "a.json").write_text(json.dumps({"data": made}))
    with pytest.raises(DataError, match=f"{key!r} where 'answers' is looked for"):
        read_articles(str(tmp_path / "a.json"))


@pytest.mark.parametrize("key", ["question", "id"])
def test_half_a_character_is_told_with_its_article(tmp_path, key):
    asked = {"question": "q", "id": "i", "answers": [], key: "why \ud800"}
    article = {"title": "t", "paragraphs": [{"context": "a", "qas": [asked]}]}
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"data": [article]}))
    with pytest.raises(DataError, match=r"a.json: article 't'.*ud800.* is half of a character"):
        read_articles(str(path))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", r"a\.json:1: must be JSON"),
        ('{"a": "\n"}', r"Received: Invalid control character at column 8\."),
        (b"\x1f\x8b{}", r"a\.json:1: must be UTF-8 text. Received: byte 0x8b."),
        ("[]", r"must be SQuAD json.* Received: \[\] is no object"),
        ("[" * 3000, "must be SQuAD json.*nest too deep"),
        ('{"data": [{"answer_start": 1e400}]}', "1e400, which is no finite number"),
        ('{"data": []}', "Received: no articles"),
        ("{}", "Received: an object without 'data'"),
        ('{"data": [{"title": "t", "paragraphs": [{"context": 1, "qas": []}]}]}', "article 't'"),
        (json.dumps({"data": [{"paragraphs": [{"context": "a", "qas": [{}]}]}]}), "without 'id'"),
        ('{"data": ["words"]}', "article '0'.*.words. is no object"),
        (
            json.dumps({"data": [{"paragraphs": [{"context": "a", "qas": [{"answer": []}]}]}]}),
            "'answer' where 'answers' is looked for",
        ),
    ],
)
def test_other_files_are_told(tmp_path, text, told):
    path = tmp_path / "a.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DataError, match=told):
        read_articles(str(path))


def test_two_questions_of_one_id_are_told(tmp_path):
    made = articles(3)
    made[2]["paragraphs"][1]["qas"][0]["id"] = "q0-1"
    with pytest.raises(DataError, match=r"an id of its own\. Received: 'q0-1' twice"):
        read_articles(str(write_squad(tmp_path / "a.json", made)))
