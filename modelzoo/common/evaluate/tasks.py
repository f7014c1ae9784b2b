"""The zero-shot tasks of jsonl files: multiple choice and last words."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cerebras_tf.errors import DataError
from modelzoo.common.files.json_text import (
    read_json_lines,
    require_unicode,
    text_of,
    write_json_lines,
)
from modelzoo.common.metrics.scores import write_scalars

SPACES = " \t\r\n"  # before a last word; a no-break space is part of a word


@dataclass(frozen=True)
class MultipleChoice:
    """One row ``{"context": ..., "choices": [...], "answer": index}``: the likeliest choice wins.

    A space is inserted between context and choice, unless there is one or the context is empty.
    """

    where: str
    context: str
    choices: tuple
    answer: int

    @classmethod
    def from_row(cls, row, where):
        """Makes a task from a jsonl row; raises a DataError if the row is malformed."""
        context, choices = text_of(row, "context", where), row.get("choices")
        texts = isinstance(choices, list) and all(isinstance(c, str) and c for c in choices)
        if not texts or len(choices) < 2:
            raise DataError(
                f"{where}: choices must be at least two strings, none empty. Received: "
                f"{choices!r:.60}. Fix the line."
            )
        for choice in choices:
            require_unicode(choice, where)
        answer = row.get("answer")
        if type(answer) is not int or not 0 <= answer < len(choices):
            raise DataError(
                f"{where}: answer must be the index of the correct choice, 0 to "
                f"{len(choices) - 1}. Received: {answer!r}. Fix the line."
            )
        return cls(where, context, tuple(choices), answer)

    def texts(self):
        """Returns the (context, continuation) to score."""
        spaced = not self.context or self.context[-1].isspace()
        return [
            (self.context, choice if spaced or choice[0].isspace() else f" {choice}")
            for choice in self.choices
        ]

    def result(self, scores):
        """Returns the row of the results file for the scores of `texts`."""
        log_probs = [score.log_prob for score in scores]
        characters = [len(choice) for choice in self.choices]
        in_bytes = [len(choice.encode("utf-8")) for choice in self.choices]
        return {
            "where": self.where,
            "log_probs": [round(value, 5) for value in log_probs],
            "choice": int(np.argmax(log_probs)),
            "choice_norm": int(np.argmax(np.divide(log_probs, characters))),
            "choice_bytes": int(np.argmax(np.divide(log_probs, in_bytes))),
            "answer": self.answer,
        }

    @staticmethod
    def summary(results):
        """Returns accuracies with the names of EleutherAI's lm-eval.

        ``acc`` compares log_probs, ``acc_norm`` log_probs divided by the characters of the choice,
        and ``acc_bytes`` by its bytes in UTF-8, both without an inserted space.
        """
        names = {"acc": "choice", "acc_norm": "choice_norm", "acc_bytes": "choice_bytes"}
        return {
            name: np.mean([row[key] == row["answer"] for row in results])
            for name, key in names.items()
        }


@dataclass(frozen=True)
class LastWord:
    """One row ``{"text": ...}``: predicts its last word greedily from the words before it.

    Source: Paperno et al., The LAMBADA dataset: Word prediction requiring a broad discourse context
    (2016).
    """

    where: str
    context: str
    word: str

    @classmethod
    def from_row(cls, row, where):
        """Makes a task from a jsonl row; raises a DataError if the row is malformed."""
        text = text_of(row, "text", where).strip()
        before = text[: max(map(text.rfind, SPACES)) + 1].rstrip(SPACES)
        if not before:
            raise DataError(
                f"{where}: text must have at least two words. Received: {text!r:.60}. Fix the line."
            )
        return cls(where, before, text[len(before) :])

    def texts(self):
        """Returns the (context, continuation) to score."""
        return [(self.context, self.word)]

    def result(self, scores):
        """Returns the row of the results file for the score of `texts`."""
        (score,) = scores
        return {
            "where": self.where,
            "word": self.word.strip(),
            "log_prob": round(score.log_prob, 5),
            "is_greedy": score.is_greedy,
        }

    @staticmethod
    def summary(results):
        """Returns the accuracy and the perplexity of a word."""
        cost = -np.mean([row["log_prob"] for row in results])
        return {"acc": np.mean([row["is_greedy"] for row in results]), "perplexity": np.exp(cost)}


TASKS: dict[str, Any] = {"multiple_choice": MultipleChoice, "last_word": LastWord}


def read_task(path, mode):
    """Reads and checks all rows of a task; returns a list of instances of the class of `mode`."""
    rows = [TASKS[mode].from_row(row, where) for where, row in read_json_lines(path)]
    if not rows:
        raise DataError(f"{path}: must contain rows. Received: an empty file. Add some.")
    return rows


def evaluate(session, rows, report=lambda count: None):
    """Scores the rows of a task.

    Returns:
        The results, a dictionary for each row, and the scores by name.
    """
    texts = [row.texts() for row in rows]
    pairs = [pair for of_row in texts for pair in of_row]
    places = [row.where for row, of_row in zip(rows, texts) for _ in of_row]
    scores = iter(session.score_texts(pairs, report=report, places=places))
    results = [row.result([next(scores) for _ in of_row]) for row, of_row in zip(rows, texts)]
    return results, {name: float(value) for name, value in rows[0].summary(results).items()}


def write_results(folder, task, step, results, scores):
    """Writes ``<task>.jsonl``, ``scores.json`` and TensorBoard events; returns the two paths."""
    path = write_json_lines(Path(folder, f"{task}.jsonl"), results)
    named = {f"zero_shot/{task}/{name}": value for name, value in scores.items()}
    return path, write_scalars(folder, step, named)
