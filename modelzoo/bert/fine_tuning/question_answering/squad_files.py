"""Reads the json files of SQuAD 1.1 and 2.0 (Rajpurkar et al. 2016 and 2018)."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass

from cerebras_tf.errors import DataError
from modelzoo.common.json_text import parse_json
from modelzoo.common.path_advice import advice_on_path


@dataclass(frozen=True)
class Question:
    """A question about a paragraph.

    Attributes:
        id: its name in the file.
        text: the question.
        answers: pairs of a text and the place of its first character in the paragraph; none where
            the file says none, or that there is no answer.
    """

    id: str
    text: str
    answers: tuple


@dataclass(frozen=True)
class Paragraph:
    """A paragraph and its questions.

    Attributes:
        article: title of the article it stands in.
        context: its text.
        questions: tuple of Question.
    """

    article: str
    context: str
    questions: tuple


@functools.lru_cache(maxsize=1)
def read_articles(path):
    """Reads a file; the last one stays in memory.

    Args:
        path: a json file of version 1.1 or 2.0, with or without answers.

    Returns:
        A tuple of articles, each a tuple of Paragraph.

    Raises:
        DataError: names the article of what is wrong.
    """
    try:
        with open(path, encoding="utf-8") as file:
            articles = parse_json(file.read())["data"]
    except json.JSONDecodeError as error:
        raise DataError(
            f"{path}:{error.lineno}: must be JSON. Received: {error.msg} at column {error.colno}. "
            "Copy the file again."
        ) from error
    except KeyError as error:
        raise _not_squad(path, f"an object without {error}", path) from error
    except (OSError, ValueError, TypeError) as error:
        raise _not_squad(path, error, path) from error
    if not isinstance(articles, list) or not articles:
        raise _not_squad(path, "no articles")
    return tuple(_article(path, number, article) for number, article in enumerate(articles))


def _article(path, number, article):
    title = str(number)
    try:
        title = article.get("title", title)
        _text(str(title))
        return tuple(
            Paragraph(
                title,
                _text(paragraph["context"]),
                tuple(_question(question) for question in paragraph["qas"]),
            )
            for paragraph in article["paragraphs"]
        )
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise _not_squad(f"{path}: article {title!r}", repr(error)) from error


def _question(question):
    impossible = question.get("is_impossible", False)
    if not isinstance(impossible, bool):
        raise TypeError(f"is_impossible {impossible!r} is neither true nor false")
    answers = () if impossible else question.get("answers", ())
    pairs = tuple((_text(answer["text"]), _place(answer["answer_start"])) for answer in answers)
    if question["id"] is None:
        raise TypeError("id null is no text")
    return Question(_text(str(question["id"])), _text(question["question"]), pairs)


def _place(value):
    if not isinstance(value, int) and int(value) != float(value):
        raise ValueError(f"answer_start {value!r} is no whole number")
    return int(value)


def _text(value):
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        half = value[error.start]
        raise ValueError(f"{half!r} in {value[:40]!r} is half of a character") from error
    return value


def _not_squad(where, received, path="."):
    return DataError(
        f"{where}: must be SQuAD json: data, paragraphs with context, qas with id, question and "
        f"answers (text, answer_start). Received: {received}. "
        f"{advice_on_path(path, 'Give a file of that form.')}"
    )
