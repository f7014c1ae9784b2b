"""Reads the json files of SQuAD 1.1 and 2.0 (Rajpurkar et al. 2016 and 2018)."""

from __future__ import annotations

import difflib
import functools
import json
from dataclasses import dataclass
from pathlib import Path

from cerebras_tf.errors import DataError
from modelzoo.common.files.json_text import parse_json, place
from modelzoo.common.files.path_advice import advice_on_path
from modelzoo.common.files.text_lines import decode

# Optional keys, of which a misspelling would be ignored, and the similarity above which another key
# is one. `plausible_answers` of version 2.0 has a similarity of 0.58 with `answers`.
OPTIONAL = {"answers": 0.6, "is_impossible": 0.8}
SHOWN = 40  # characters of a value


@dataclass(frozen=True)
class Question:
    """A question about a paragraph.

    Attributes:
        answers: pairs of a text and the index of its first character in the paragraph; none if the
            file has none, or is_impossible is true.
    """

    id: str
    text: str
    answers: tuple


@dataclass(frozen=True)
class Paragraph:
    """A paragraph and its questions."""

    article: str
    context: str
    questions: tuple


@functools.lru_cache(maxsize=1)
def read_articles(path):
    """Reads a file. The last result is cached.

    Returns:
        A tuple of articles, each a tuple of Paragraph.
    """
    try:
        text = decode(Path(path).read_bytes(), path)
        articles = _checked(parse_json(text), dict)["data"]
    except json.JSONDecodeError as error:
        raise DataError(
            f"{path}:{error.lineno}: must be JSON. Received: {place(error)}. Copy the file again."
        ) from error
    except OSError as error:
        raise _not_squad(path, error.strerror, path) from error
    except (KeyError, ValueError, TypeError) as error:
        raise _not_squad(path, _reason(error), path) from error
    if not isinstance(articles, list) or not articles:
        raise _not_squad(path, "no articles")
    read = tuple(_article(path, number, article) for number, article in enumerate(articles))
    seen = set()
    for question in (q for article in read for paragraph in article for q in paragraph.questions):
        if question.id in seen:
            raise DataError(
                f"{path}: every question must have an id of its own. Received: {question.id!r} "
                "twice. Give one of them another."
            )
        seen.add(question.id)
    return read


def _article(path, number, article):
    title = str(number)
    try:
        title = _checked(article, dict).get("title", title)
        _text(str(title))
        paragraphs = _checked(article["paragraphs"], list)
        return tuple(_paragraph(title, _checked(item, dict)) for item in paragraphs)
    except (KeyError, TypeError, ValueError) as error:
        raise _not_squad(f"{path}: article {title!r}", _reason(error)) from error


def _paragraph(title, paragraph):
    asked = _checked(paragraph["qas"], list)
    questions = tuple(_question(_checked(item, dict)) for item in asked)
    return Paragraph(title, _text(paragraph["context"]), questions)


def _question(question):
    for key, alike in OPTIONAL.items():
        near = difflib.get_close_matches(key, question, n=1, cutoff=alike)
        if near and near != [key]:
            raise ValueError(f"{near[0]!r} in place of {key!r}")
    impossible = question.get("is_impossible", False)
    if not isinstance(impossible, bool):
        raise TypeError(f"is_impossible {_json(impossible)} is neither true nor false")
    answers = () if impossible else _checked(question.get("answers", []), list)
    pairs = tuple(_answer(_checked(item, dict)) for item in answers)
    key = question["id"]
    if isinstance(key, bool) or not isinstance(key, (str, int)):
        raise TypeError(f"id {_json(key)} is not text")
    if not _text(question["question"]).strip():
        raise ValueError(f"question {_json(key)} has no words")
    return Question(_text(str(key)), question["question"], pairs)


def _answer(answer):
    return _text(answer["text"]), _place(answer["answer_start"])


def _checked(value, kind):
    if not isinstance(value, kind):
        name = "JSON object" if kind is dict else "list"
        raise TypeError(f"{_json(value)} is not a {name}")
    return value


def _place(value):
    try:
        if not isinstance(value, bool) and int(value) == float(value):
            return int(value)
    except (TypeError, ValueError, OverflowError):
        pass
    raise TypeError(f"answer_start {_json(value)} is not a whole number")


def _text(value):
    if not isinstance(value, str):
        raise TypeError(f"{_json(value)} is not text")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        half = value[error.start]
        raise ValueError(f"{half!r} in {value[:40]!r} is half of a character") from error
    return value


def _json(value):
    text = json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= SHOWN else f"{text[:SHOWN]} ..."


def _reason(error):
    return f"an object without {error}" if isinstance(error, KeyError) else error


def _not_squad(where, received, path="."):
    return DataError(
        f"{where}: must be SQuAD json: data, paragraphs with context, qas with id, question and "
        f"answers (text, answer_start). Received: {received}. "
        f"{advice_on_path(path, 'Give a file of that form.')}"
    )
