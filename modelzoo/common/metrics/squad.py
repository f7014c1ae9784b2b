"""Exact match and F1 of answers to SQuAD, as in its official evaluation scripts.

Sources: Rajpurkar et al. 2016 (1.1), section 6.1; Rajpurkar et al. 2018 (2.0), appendix A. An empty
text is the answer that there is none.
"""

import math
import re
import string
from collections import Counter
from typing import NamedTuple

from cerebras_tf.errors import DataError

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)


class Counted(NamedTuple):
    """The scores of one question, from 0 to 1, and whether it has an answer."""

    exact: float
    f1: float
    has_answer: bool


def normalize(text):
    """Returns the text in lower case, without ASCII punctuation, articles and spare white space."""
    return " ".join(words(text))


def words(text):
    """Returns the words that two texts are compared by, separated by white space of any kind."""
    return ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split()


def exact_match(prediction, answer):
    """Returns 1.0 if the two texts are equal once normalized, else 0.0."""
    return float(normalize(prediction) == normalize(answer))


def token_f1(prediction, answer):
    """Returns the F1 of the words two texts share, each as often as both have it.

    Two texts without words are not equal here, as in the rules of 1.1.
    """
    predicted, true = words(prediction), words(answer)
    common = sum((Counter(predicted) & Counter(true)).values())
    return 2.0 * common / (len(predicted) + len(true)) if common else 0.0


def squad_v1(questions, predictions):
    """Scores answers to version 1.1; each counts against the true answer nearest to it.

    Args:
        questions: lists of true answers by id. Ids that are numbers are equal to their text.
        predictions: texts by id. A question without one counts as wrong.

    Returns:
        ``exact_match`` and ``f1`` in percent, ``total`` questions and how many were ``missing``.
    """
    questions, predictions = _by_text(questions), _by_text(predictions)
    given = [
        (predictions[key], answers) for key, answers in questions.items() if key in predictions
    ]
    exact = sum(max(exact_match(text, answer) for answer in answers) for text, answers in given)
    f1 = sum(max(token_f1(text, answer) for answer in answers) for text, answers in given)
    total = len(questions)
    return {
        "exact_match": 100.0 * exact / total,
        "f1": 100.0 * f1 / total,
        "total": total,
        "missing": total - len(given),
    }


def squad_v2(questions, predictions, null_odds=None):
    """Scores answers to version 2.0, where some paragraphs hold none.

    Args:
        questions: lists of true answers by id. Ids that are numbers are equal to their text.
        predictions: texts by id, empty for no answer. As in the official script, a question without
            one does not count.
        null_odds: log odds that there is no answer, by id. The best scores need predictions with an
            answer to every question.

    Returns:
        ``exact`` and ``f1`` in percent and ``total``; the same after ``HasAns_`` and ``NoAns_`` for
        the questions with and without an answer, where there are any; how many were ``missing``;
        and with null_odds ``best_exact``, ``best_f1``, the percentages reached if every question
        whose odds are above ``best_exact_thresh`` or ``best_f1_thresh`` got no answer.
    """
    questions, predictions = _by_text(questions), _by_text(predictions)
    counted = {
        key: _count_v2(predictions[key], answers)
        for key, answers in questions.items()
        if key in predictions
    }
    scores = _percentages(counted.values(), "")
    for prefix, wanted in (("HasAns_", True), ("NoAns_", False)):
        part = [one for one in counted.values() if one.has_answer == wanted]
        scores.update(_percentages(part, prefix) if part else {})
    scores["missing"] = len(questions) - len(counted)
    if null_odds is not None:
        scores.update(_best_scores(counted, predictions, _by_text(null_odds)))
    return scores


def _by_text(values):
    """Returns values by the texts of their ids: JSON has no keys that are numbers."""
    named = {str(key): value for key, value in values.items()}
    if len(named) < len(values):
        raise DataError(
            f"squad: every id must occur once. Received: {len(values)} ids, of which "
            f"{len(values) - len(named)} differ from another in type only. Use one type."
        )
    return named


def _count_v2(prediction, answers):
    true = [answer for answer in answers if normalize(answer)] or [""]
    exact = max(exact_match(prediction, answer) for answer in true)
    if not normalize(prediction) or true == [""]:
        return Counted(exact, exact, bool(answers))
    return Counted(exact, max(token_f1(prediction, answer) for answer in true), bool(answers))


def _percentages(counted, prefix):
    total = len(counted)
    return {
        f"{prefix}exact": 100.0 * sum(one.exact for one in counted) / total,
        f"{prefix}f1": 100.0 * sum(one.f1 for one in counted) / total,
        f"{prefix}total": total,
    }


def _best_scores(counted, predictions, null_odds):
    """Tries every threshold, from the one below which no question gets an answer.

    There every question without an answer is right; raising it past a question brings that one's
    score if it has an answer, and costs 1 if it has none and was given one.
    """
    order = sorted((key for key in null_odds if key in counted), key=null_odds.__getitem__)
    lowest = min(0.0, math.nextafter(null_odds[order[0]], -math.inf))
    best = {}
    for name in ("exact", "f1"):
        score = most = float(sum(not one.has_answer for one in counted.values()))
        threshold = lowest
        for key in order:
            if counted[key].has_answer:
                score += getattr(counted[key], name)
            elif predictions[key]:
                score -= 1.0
            if score > most:
                most, threshold = score, null_odds[key]
        best[f"best_{name}"] = 100.0 * most / len(counted)
        best[f"best_{name}_thresh"] = threshold
    return best
