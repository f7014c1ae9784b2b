"""Reads tagged sentences (.tsv) and the numbers of their labels (label2id.json).

Labels are ``[PAD]``, the tags of the data (``B``, ``I``, ``O``, or with a type ``B-Disease``),
``X`` for all but the first piece of a word, ``[CLS]`` and ``[SEP]``, as in the original zoo.
"""

import re
from dataclasses import dataclass

from cerebras_tf.errors import ConfigError, DataError
from cerebras_tf.user_files import read_json, reason
from modelzoo.common.files import text_lines
from modelzoo.common.files.path_advice import advice_on_path, unread

PAD, LATER_PIECE, BEGIN, END = "[PAD]", "X", "[CLS]", "[SEP]"
OUTSIDE = "O"
TAG = re.compile(r"O|[BI](-\S+)?")
DOCUMENT_START = "-DOCSTART-"  # a line of CoNLL files between documents


@dataclass(frozen=True)
class Sentence:
    """Words and their tags, two lists of str of one length."""

    words: list
    tags: list


def read_sentences(path):
    """Reads a file with one word in each line and empty lines between sentences.

    A line is ``word<TAB>tag``, or has the columns of CoNLL, separated by spaces: the first is the
    word, the last its tag. A no-break space is a character of a word.

    Returns:
        A list of Sentence.
    """
    sentences: list[Sentence] = []
    words: list[str] = []
    tags: list[str] = []
    for number, line in enumerate(text_lines.read_lines(path), start=1):
        columns = text_lines.columns(line, "\t" if "\t" in line else None)
        columns = [column.strip(text_lines.BLANKS) for column in columns]
        if not any(columns) or columns[0] == DOCUMENT_START:
            if words:
                sentences.append(Sentence(words, tags))
                words, tags = [], []
            continue
        tag = columns[-1]
        if any(text_lines.CR in column for column in columns):
            raise DataError(
                f"{path}:{number}: must contain one word. Received: {line[:60]!r}, which contains "
                "a CR. End all lines with LF."
            )
        if len(columns) < 2 or not columns[0] or not TAG.fullmatch(tag):
            raise DataError(
                f"{path}:{number}: must contain a word and its tag, O, B or I, with or without a "
                f"type as in B-Disease. Received: {line[:60]!r}. Fix the line."
            )
        words.append(columns[0])
        tags.append(tag)
    if words:
        sentences.append(Sentence(words, tags))
    if not sentences:
        raise DataError(f"{path}: must contain sentences. Received: none. Copy the file again.")
    return sentences


def label_names(sentences):
    """Returns all labels of an iterable of Sentence, in the order of their numbers."""
    tags = {tag for sentence in sentences for tag in sentence.tags}
    return [PAD, *sorted(tags | {OUTSIDE}), LATER_PIECE, BEGIN, END]


def read_label_names(path):
    """Reads a label2id.json, and returns the labels in the order of their numbers."""
    try:
        numbers = read_json(path, {str: (int, str)}, "utf-8-sig")
    except (OSError, ValueError) as error:
        raise unread(error)(
            f"{path}: label_vocab_file must be the label2id.json that `cerebras-tf prepare ner` "
            f"wrote. Received: {reason(error)}. {advice_on_path(path, 'Use that file.')}"
        ) from error
    if sorted(map(str, numbers.values())) != sorted(map(str, range(len(numbers)))):
        raise ConfigError(
            f"{path}: label_vocab_file must map labels to consecutive integers from 0. Received: "
            f"{str(numbers)[:80]}. Write it with `cerebras-tf prepare ner`."
        )
    return sorted(numbers, key=lambda name: int(numbers[name]))


def require_same_labels(path, names, other_path, other_names):
    """Raises a ConfigError if the `names` of the label_vocab_file `path` are not `other_names`."""
    if list(names) != list(other_names):
        raise ConfigError(
            f"{path}: label_vocab_file must contain the labels of {other_path}, with the same ids: "
            f"{', '.join(other_names)}. Received: {', '.join(names)}. Use the label2id.json of the "
            "training records."
        )
