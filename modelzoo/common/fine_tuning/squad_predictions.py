"""Chooses the answers to the questions of a SQuAD file, writes and scores them and some baselines.

Source: Devlin et al. (2018), sections 4.2 and 4.3, and their released run_squad.py.
"""

import itertools
import json
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cerebras_tf.api import counted, get_logger
from cerebras_tf.errors import ConfigError, DataError
from cerebras_tf.whole_file import write_whole
from modelzoo.common.files import text_lines
from modelzoo.common.fine_tuning.sentences import split_sentences
from modelzoo.common.fine_tuning.texts import read_windows
from modelzoo.common.metrics import squad
from modelzoo.common.metrics.squad import squad_v1, squad_v2

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
            f"{section.predict_file}: at least one question must be predicted completely. "
            "Received: only some windows of the first question. Raise runconfig.predict_steps."
        )
    texts = write_answers(choices, section, folder)
    get_logger().info("wrote answers to %s to %s", counted(len(texts), "question"), folder)
    return score(windows, choices, texts, section)


def check_answers(windows, section):
    """Refuses questions of which only some have an answer, without version_2_with_negative."""
    answered = {question.id: bool(question.answers) for question, _, _ in windows}
    without = [key for key, known in answered.items() if not known]
    if 0 < len(without) < len(answered) and not section.version_2_with_negative:
        raise ConfigError(
            f"{section.predict_file}: predict_input.version_2_with_negative must be True for "
            f"questions without an answer. Received: {len(without)} of {len(answered)} have none, "
            f"the first is {without[0]!r}. Set it, or add the answers."
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
    words = text_lines.words(context)
    places = max(1, len(words) - SPAN_WORDS + 1)
    place = zlib.crc32(question.id.encode("utf-8")) % places
    return " ".join(words[place : place + SPAN_WORDS])


def first_words(context, question):
    """Returns the first SPAN_WORDS words of the paragraph."""
    return " ".join(text_lines.words(context)[:SPAN_WORDS])


def closest_sentence(context, question):
    """Returns the first of the sentences that share most words with the question."""
    asked = set(squad.words(question.text))
    sentences = split_sentences(context) or [context]
    return max(sentences, key=lambda sentence: len(asked & set(squad.words(sentence))))


BASELINES = {
    "random-span": random_span,
    "first-words": first_words,
    "closest-sentence": closest_sentence,
}


@dataclass(frozen=True)
class Answer:
    """A possible answer. The null answer, that there is none, has an empty text.

    Attributes:
        last: index of its last token; before `first` in the null answer.
    """

    text: str
    start_logit: float
    end_logit: float
    first: int = 0
    last: int = -1

    @property
    def score(self):
        """The sum of the logits."""
        return self.start_logit + self.end_logit


@dataclass(frozen=True)
class Choice:
    """The answers to a question.

    Attributes:
        best: list of Answer with different texts, the likeliest first, without the null answer.
    """

    best: list
    null: Answer

    @property
    def null_odds(self):
        """Score of the null answer minus that of the best one.

        Without any best one it is the largest float, because JSON has no infinity.
        """
        return self.null.score - self.best[0].score if self.best else sys.float_info.max

    def text(self, version_2=False, threshold=0.0, by_expected_f1=False):
        """Returns the text of the answer, empty if there is none.

        Args:
            threshold: value of `null_odds` above which the null answer is returned.
            by_expected_f1: returns the answer of the largest `expected_f1`, not the likeliest.
        """
        if not self.best or (version_2 and self.null_odds > threshold):
            return ""
        return self.best[int(np.argmax(expected_f1(self.best))) if by_expected_f1 else 0].text

    def listed(self, version_2=False):
        """Returns the answers as dictionaries, with a softmax over them as probabilities."""
        rows = [*self.best, *([self.null] if version_2 or not self.best else [])]
        rows.sort(key=lambda answer: -answer.score)
        return [
            {
                "text": answer.text,
                "probability": float(share),
                "start_logit": answer.start_logit,
                "end_logit": answer.end_logit,
            }
            for answer, share in zip(rows, probabilities(rows))
        ]


def probabilities(answers):
    """Returns the softmax of the scores of answers, [n] float64."""
    scores = np.array([answer.score for answer in answers])
    shares = np.exp(scores - scores.max())
    return shares / shares.sum()


def expected_f1(answers):
    """Returns the expected F1 of each answer under `probabilities`, [n] float64.

    F1 is that of token positions. An answer that overlaps many likely ones has a larger expected F1
    than a likelier one that overlaps none. Source: Kumar and Byrne, Minimum Bayes-Risk Decoding for
    Statistical Machine Translation (2004), with 1 - F1 as the loss.
    """
    firsts, lasts = (np.array(ends) for ends in zip(*((a.first, a.last) for a in answers)))
    shared = np.minimum.outer(lasts, lasts) - np.maximum.outer(firsts, firsts) + 1
    sizes = lasts - firsts + 1
    return 2 * np.maximum(shared, 0) / np.add.outer(sizes, sizes) @ probabilities(answers)


def choose(context, offsets, parts, n_best_size, max_answer_length):
    """Chooses the best answers to a question.

    A first token is scored in the window where it has most context. The null answer is scored at
    [CLS], in the window where it is least likely.

    Args:
        offsets: [n, 2] int32, characters of its tokens.
        parts: for each window (Window, start logits, end logits), logits at least as long as its
            tokens.
        n_best_size: number of answers to keep, and of first and last tokens to try in a window.
        max_answer_length: tokens of an answer, at most.

    Returns:
        A Choice.
    """
    found = []
    for window, starts, ends in parts:
        for start, end, first, last in _spans(window, starts, ends, n_best_size, max_answer_length):
            text = context[offsets[start, 0] : offsets[end, 1]]
            found.append(Answer(text, first, last, start, end))
    found.sort(key=lambda answer: -answer.score)
    best: dict = {}
    for answer in found:
        if answer.text and len(best) < n_best_size:
            best.setdefault(answer.text, answer)
    nulls = [Answer("", float(starts[0]), float(ends[0])) for _, starts, ends in parts]
    return Choice(list(best.values()), min(nulls, key=lambda answer: answer.score))


def _spans(window, starts, ends, n_best_size, max_answer_length):
    """Yields spans of the paragraph: first token, last token, and the logit of each."""
    inside = slice(window.first, window.first + window.count)
    firsts = np.where(window.has_most_context, starts[inside], -np.inf)
    lasts = np.asarray(ends[inside])
    begin = np.argsort(-firsts, kind="stable")[:n_best_size]
    finish = np.argsort(-lasts, kind="stable")[:n_best_size]
    lengths = finish[None, :] - begin[:, None] + 1
    fits = (lengths >= 1) & (lengths <= max_answer_length) & np.isfinite(firsts[begin])[:, None]
    for i, j in np.argwhere(fits):
        start, end = int(begin[i]), int(finish[j])
        yield (window.start + start, window.start + end, float(firsts[start]), float(lasts[end]))
