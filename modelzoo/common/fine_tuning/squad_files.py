"""Reads the json files of SQuAD 1.1 and 2.0 (Rajpurkar et al. 2016 and 2018)."""

import functools
import json
import math
from dataclasses import dataclass

from cerebras_tf.errors import DataError
from cerebras_tf.user_files import parse_json, read_bytes, reason
from modelzoo.common.files.json_text import place
from modelzoo.common.files.path_advice import advice_on_path
from modelzoo.common.files.text_lines import decode


@dataclass(frozen=True)
class Question:
    """A question about a paragraph.

    Attributes:
        id: unique in the file.
        answers: pairs of a text and the index of its first character in the paragraph; none if the
            file has none, or is_impossible is true.
    """

    id: str
    text: str
    answers: tuple


@dataclass(frozen=True)
class Paragraph:
    """A text with its questions; `article` is the title of its article."""

    article: str
    context: str
    questions: tuple


@functools.lru_cache(maxsize=1)
def read_articles(path):
    """Reads a json file of version 1.1 or 2.0, with or without answers. The last result is cached.

    Returns:
        A tuple of articles, each a tuple of Paragraph.
    """
    try:
        articles = _value(parse_json(decode(read_bytes(path), path)), "data", list)
        if not articles:
            raise ValueError("no articles")
    except json.JSONDecodeError as error:
        raise DataError(
            f"{path}:{error.lineno}: must be one JSON object, as the files of SQuAD are. Received: "
            f"{place(error)}. Convert it, or copy the file again."
        ) from error
    except (OSError, ValueError) as error:
        raise _not_squad(path, reason(error), path) from error
    read = tuple(_article(path, number, article) for number, article in enumerate(articles))
    seen = set()
    for question in (q for article in read for paragraph in article for q in paragraph.questions):
        if question.id in seen:
            raise DataError(
                f"{path}: every question must have a unique id. Received: {question.id!r} twice. "
                "Assign another id to one of them."
            )
        seen.add(question.id)
    return read


def _article(path, number, article):
    title = str(number)
    try:
        paragraphs = _value(article, "paragraphs", list)
        title = str(article.get("title", title))
        return tuple(_paragraph(title, paragraph) for paragraph in paragraphs)
    except ValueError as error:
        raise _not_squad(f"{path}: article {title!r}", error) from error


def _paragraph(title, paragraph):
    questions = tuple(map(_question, _value(paragraph, "qas", list)))
    return Paragraph(title, _value(paragraph, "context", str), questions)


def _question(question):
    text, key = _value(question, "question", str), str(_value(question, "id", (str, int)))
    if not text.strip():
        raise ValueError(f"question {key!r} has no words")
    impossible = _value(question, "is_impossible", bool, False)
    answers = [] if impossible else _value(question, "answers", list, [])
    return Question(key, text, tuple(map(_answer, answers)))


def _answer(answer):
    start = _value(answer, "answer_start", (int, float))
    if not math.isfinite(start) or start != int(start):
        raise ValueError(f"answer_start {start} is not an integer")
    return _value(answer, "text", str), int(start)


def _value(item, key, kind, default=None):
    """Returns what an object has under a key, of the type that it must be of."""
    if not isinstance(item, dict):
        raise ValueError(f"{item!r:.40} is not an object")
    value = item.get(key, default)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"{key} {value!r:.40}")
    if isinstance(value, str):
        value.encode("utf-8")  # half of a character is none
    return value


def _not_squad(where, received, path="."):
    return DataError(
        f"{where}: must be JSON in the format of SQuAD: data, paragraphs with context, qas with "
        f"id, question and answers (text, answer_start). Received: {received}. "
        f"{advice_on_path(path, 'Use such a file.')}"
    )


def chosen_articles(path, articles):
    """Returns the first article and one past the last."""
    count = len(read_articles(path))
    first, last = articles or (0, count)
    if not 0 <= first < last <= count:
        raise DataError(
            f"{path}: articles must be within its {count} articles. Received: {first} to {last}. "
            "Select others, or remove articles to use all."
        )
    return first, last
