"""Chooses the best answers to a question from the logits of its windows.

Source: Devlin et al. (2018), sections 4.2 and 4.3, and their released run_squad.py.
"""

import sys
from dataclasses import dataclass

import numpy as np


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
