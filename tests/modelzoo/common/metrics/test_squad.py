"""Tests of modelzoo/common/metrics/squad.py: the rules of SQuAD's evaluation, case by case."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest

from modelzoo.bert.fine_tuning.question_answering.squad_files import read_articles
from modelzoo.common.metrics.squad import exact_match, normalize, squad_v1, squad_v2, token_f1

DEV = Path(__file__).resolve().parents[5] / "shared/data/squad/dev-v1.1.json"


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The Denver Broncos!", "denver broncos"),
        ("  a  cat,\tan\nowl and the hen ", "cat owl and hen"),
        # Punctuation goes before articles: "a.m." and "the-end" are one word each by then.
        ("5 a.m.", "5 am"),
        ("the-end", "theend"),
        ("'A'", ""),
        ("theatre, Anna", "theatre anna"),
        # Only ASCII punctuation goes; only white space splits.
        ("\u201cna\u00efve\u201d\u2013x\u00a0y", "\u201cna\u00efve\u201d\u2013x y"),
        ("$1,000.50", "100050"),
    ],
)
def test_normalize_follows_the_official_order(text, normal):
    assert normalize(text) == normal
    assert normalize(normal) == normal


@pytest.mark.parametrize(
    ("prediction", "answer", "exact", "f1"),
    [
        ("the Broncos", "Broncos.", 1.0, 1.0),
        ("Denver Broncos", "Broncos", 0.0, 2 / 3),
        ("Carolina", "Denver", 0.0, 0.0),
        ("very very big", "very big big", 0.0, 2 / 3),
        ("big very", "very big", 0.0, 1.0),
        ("", "Denver", 0.0, 0.0),
        ("the", "a", 1.0, 0.0),
    ],
)
def test_a_prediction_scores_against_one_answer(prediction, answer, exact, f1):
    assert exact_match(prediction, answer) == exact
    assert token_f1(prediction, answer) == pytest.approx(f1)
    assert token_f1(answer, prediction) == pytest.approx(f1)


def test_f1_is_the_harmonic_mean_of_the_shared_words():
    generator = random.Random(0)
    for _ in range(200):
        a, b = (generator.choices("xyzw", k=generator.randint(1, 6)) for _ in range(2))
        rest = list(b)
        for word in a:
            if word in rest:
                rest.remove(word)
        shared = len(b) - len(rest)
        wanted = 2 / (len(a) / shared + len(b) / shared) if shared else 0.0
        assert token_f1(" ".join(a), " ".join(b)) == pytest.approx(wanted)


def test_version_one_takes_the_nearest_answer_and_counts_missing_ones_as_wrong():
    questions = {"q1": ["Denver", "Denver Broncos"], "q2": ["1999"], "q3": ["a cat", "dog"]}
    found = squad_v1(questions, {"q1": "the Broncos", "q3": "Dog!", "other": "x"})
    assert found == {
        "exact_match": pytest.approx(100 / 3),
        "f1": pytest.approx(100 * (2 / 3 + 1) / 3),
        "total": 3,
        "missing": 1,
    }


QUESTIONS = {"h1": ["Denver"], "h2": ["the cat"], "h3": ["red dog"], "n1": [], "n2": []}


def test_version_two_splits_questions_with_and_without_answers():
    predictions = {"h1": "Denver", "h2": "", "h3": "dog", "n1": "", "n2": "something"}
    found = squad_v2(QUESTIONS, predictions)
    assert found == {
        "exact": pytest.approx(100 * 2 / 5),
        "f1": pytest.approx(100 * (1 + 2 / 3 + 1) / 5),
        "total": 5,
        "HasAns_exact": pytest.approx(100 / 3),
        "HasAns_f1": pytest.approx(100 * (1 + 2 / 3) / 3),
        "HasAns_total": 3,
        "NoAns_exact": 50.0,
        "NoAns_f1": 50.0,
        "NoAns_total": 2,
        "missing": 0,
    }


def test_version_two_leaves_missing_predictions_out():
    found = squad_v2(QUESTIONS, {"h1": "Denver", "n1": ""})
    assert (found["exact"], found["total"], found["missing"]) == (100.0, 2, 3)
    assert "HasAns_f1" not in squad_v2(QUESTIONS, {"n1": ""})


def test_version_two_gives_no_part_credit_where_no_answer_is_right():
    """An answer of articles only is none; answers of articles only are left out."""
    assert squad_v2({"n": []}, {"n": "the"})["f1"] == 100.0
    assert squad_v2({"h": ["a", "cat"]}, {"h": ""})["f1"] == 0.0
    assert squad_v2({"h": ["cat"]}, {"h": "an"})["f1"] == 0.0


def after_threshold(predictions, odds, threshold):
    return {key: "" if odds[key] > threshold else text for key, text in predictions.items()}


@pytest.mark.parametrize("seed", range(20))
def test_best_scores_are_those_of_the_best_threshold(seed):
    """Against trying every threshold by emptying the predictions above it."""
    generator = random.Random(seed)
    answers = ["red dog", "blue dog", "cat"]
    questions = {str(i): generator.choice([[], [generator.choice(answers)]]) for i in range(12)}
    predictions = {key: generator.choice(answers) for key in questions}
    odds = {key: generator.uniform(-5, 3) for key in questions}
    found = squad_v2(questions, predictions, odds)
    for name in ("exact", "f1"):
        tried = [
            squad_v2(questions, after_threshold(predictions, odds, threshold))[name]
            for threshold in [-math.inf, *odds.values()]
        ]
        assert found[f"best_{name}"] == pytest.approx(max(tried))
        chosen = after_threshold(predictions, odds, found[f"best_{name}_thresh"])
        assert squad_v2(questions, chosen)[name] == pytest.approx(max(tried))


def test_null_odds_do_not_change_the_other_scores():
    predictions = dict.fromkeys(QUESTIONS, "Denver")
    odds = {key: float(place) for place, key in enumerate(QUESTIONS)}
    found = squad_v2(QUESTIONS, predictions, odds)
    plain = squad_v2(QUESTIONS, predictions)
    assert {key: found[key] for key in plain} == plain
    assert set(found) - set(plain) == {
        f"best_{name}{end}" for name in ("exact", "f1") for end in ("", "_thresh")
    }


@pytest.mark.slow
def test_the_first_answers_of_the_dev_set_score_full_marks():
    if not DEV.exists():
        pytest.skip(f"{DEV} is absent")
    questions = {
        question.id: [text for text, _ in question.answers]
        for article in read_articles(str(DEV))
        for paragraph in article
        for question in paragraph.questions
    }
    found = squad_v1(questions, {key: texts[0] for key, texts in questions.items()})
    assert found == {"exact_match": 100.0, "f1": 100.0, "total": 10570, "missing": 0}
    # Each second person against the others, which Rajpurkar et al. 2016 (table 5) count as 80.3 and
    # 90.5 on version 1.0 of this set.
    questions = {key: texts for key, texts in questions.items() if len(texts) > 1}
    others = {key: texts[:1] + texts[2:] for key, texts in questions.items()}
    found = squad_v1(others, {key: texts[1] for key, texts in questions.items()})
    assert found["exact_match"] == pytest.approx(80.3, abs=1.5)
    assert found["f1"] == pytest.approx(90.5, abs=1.0)
