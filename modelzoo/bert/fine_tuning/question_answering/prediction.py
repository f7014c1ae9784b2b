"""Writes the answers to the questions of a SQuAD file, and scores them and some baselines."""

import itertools
import json
import zlib
from collections.abc import Callable
from pathlib import Path

import tensorflow.compat.v1 as tf

from cerebras_tf.errors import ConfigError, DataError
from cerebras_tf.whole_file import write_whole
from modelzoo.bert.fine_tuning.question_answering.answers import choose
from modelzoo.bert.fine_tuning.question_answering.data import read_windows
from modelzoo.bert.sentences import split_sentences
from modelzoo.common.metrics.squad import normalize, squad_v1, squad_v2

SCORES = ("exact_match", "exact", "f1")  # those of baselines
SPAN_WORDS = 3  # the answers of SQuAD 1.1's development set have 2.9 words on average
FILES = ("predictions.json", "nbest_predictions.json", "null_odds.json")


def write_predictions(section, rows, folder, name_of):
    """Writes the answers to predict_input.predict_file, and returns their scores.

    ``predictions.json`` has the answer of each question, ``nbest_predictions.json`` the best ones,
    and ``null_odds.json`` the log odds that there is no answer. A question is answered if all of
    its windows were predicted. See FineTuning.write_predictions.
    """
    windows, _ = read_windows(section)
    check_answers(windows, section)
    choices = choose_answers(windows, rows, section)
    if not choices:
        raise DataError(
            f"{section.predict_file}: at least one question must be predicted whole. Received: "
            "only some of the windows of the first. Raise runconfig.predict_steps."
        )
    texts = write_answers(choices, section, folder)
    tf.logging.info("wrote answers to %d questions to %s", len(texts), folder)
    return score(windows, choices, texts, section)


def check_answers(windows, section):
    """Raises a ConfigError if only some questions have an answer without version_2_with_negative.

    Args:
        windows: those of `read_windows`.
    """
    answered = {question.id: bool(question.answers) for question, _, _ in windows}
    without = [key for key, known in answered.items() if not known]
    if 0 < len(without) < len(answered) and not section.version_2_with_negative:
        raise ConfigError(
            f"{section.predict_file}: predict_input.version_2_with_negative must be True for "
            f"questions without an answer. Received: {len(without)} of {len(answered)} have none, "
            f"the first is {without[0]!r}. Set it, or give each an answer."
        )


def choose_answers(windows, rows, section):
    """Chooses the answers of all questions whose windows were all predicted.

    Args:
        windows: those of `read_windows`.
        rows: predictions, each with unique_ids [1], start_logits and end_logits [S].

    Returns:
        A Choice by question id, in the order of the file.
    """
    rows = {int(row["unique_ids"][0]): (row["start_logits"], row["end_logits"]) for row in rows}
    choices = {}
    numbered = enumerate(windows)
    for question, group in itertools.groupby(numbered, key=lambda item: item[1][0]):
        members = list(group)
        if all(number in rows for number, _ in members):
            (context, offsets) = members[0][1][1]
            parts = [(window, *rows[number]) for number, (_, _, window) in members]
            choices[question.id] = choose(
                context, offsets, parts, section.n_best_size, section.max_answer_length
            )
    return choices


def write_answers(choices, section, folder):
    """Writes the three files, each atomically; returns the answer's text by question id."""
    version_2, threshold = section.version_2_with_negative, section.null_score_diff_threshold
    by_f1 = section.answer_by == "expected_f1"
    texts = {key: choice.text(version_2, threshold, by_f1) for key, choice in choices.items()}
    contents = (
        texts,
        {key: choice.listed(version_2) for key, choice in choices.items()},
        {key: choice.null_odds for key, choice in choices.items()},
    )
    for name, content in zip(FILES, contents):
        write_whole(Path(folder, name), json.dumps(content, indent=2, ensure_ascii=False))
    return texts


def score(windows, choices, texts, section):
    """Scores the answers and those of the baselines, if the file has true ones.

    Args:
        windows: those of `read_windows`.

    Returns:
        Scores of `squad_v1` or `squad_v2` by name, and those of baselines by names such as
        ``random-span/f1``. Empty if no question has an answer.
    """
    asked = {question.id: (context, question) for question, (context, _), _ in windows}
    true = {key: [text for text, _ in asked[key][1].answers] for key in choices}
    if not any(true.values()):
        return {}
    scoring: Callable[..., dict] = squad_v2 if section.version_2_with_negative else squad_v1
    if section.version_2_with_negative:
        odds = {key: choice.null_odds for key, choice in choices.items()}
        by_f1 = section.answer_by == "expected_f1"
        named = {key: choice.text(by_expected_f1=by_f1) for key, choice in choices.items()}
        best = squad_v2(true, named, odds)
        best = {key: best[key] for key in best if key.startswith("best_")}
    else:
        best = {}
    scores = {**scoring(true, texts), **best}
    for name, answer in BASELINES.items():
        found = scoring(true, {key: answer(*asked[key]) for key in true})
        scores.update({f"{name}/{key}": found[key] for key in SCORES if key in found})
    return scores


def random_span(context, question):
    """Returns SPAN_WORDS words from a position that is a hash of the question's id."""
    words = context.split()
    places = max(1, len(words) - SPAN_WORDS + 1)
    place = zlib.crc32(question.id.encode("utf-8")) % places
    return " ".join(words[place : place + SPAN_WORDS])


def first_words(context, question):
    """Returns the first SPAN_WORDS words of the paragraph."""
    return " ".join(context.split()[:SPAN_WORDS])


def closest_sentence(context, question):
    """Returns the first of the sentences that share most words with the question."""
    asked = set(normalize(question.text).split())
    sentences = split_sentences(context) or [context]
    return max(sentences, key=lambda sentence: len(asked & set(normalize(sentence).split())))


BASELINES = {
    "random-span": random_span,
    "first-words": first_words,
    "closest-sentence": closest_sentence,
}
