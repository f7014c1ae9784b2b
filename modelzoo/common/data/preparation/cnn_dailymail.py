"""Reads articles and their highlights from CNN/DailyMail: rows, ``.story`` or ``.bin`` files.

A row (of JSON lines, CSV or Parquet) has its article under ``article`` and its highlights, one a
line, under ``highlights``. A story has paragraphs, then each highlight after a line ``@highlight``
(Hermann et al., Teaching Machines to Read and Comprehend, 2015). A ``.bin`` file (See et al., Get
To The Point, 2017) is a row of records, each an int64, little end first, followed by the bytes of
the tf.train.Example, whose features ``article`` and ``abstract`` hold a text each; highlights stand
between ``<s>`` and ``</s>``.
"""

import os
import re

from cerebras_tf.errors import DataError
from cerebras_tf.user_files import open_regular, read_bytes
from modelzoo.common.data.preparation.input_files import named_like
from modelzoo.common.files import text_lines, text_sources

SUFFIXES = (
    *(".story", ".bin", ".jsonl", ".jsonl.zst", ".jsonl.gz", ".jsonl.xz"),
    *(".csv", ".csv.gz", ".parquet"),
)
MARK = "@highlight"
HIGHLIGHT = re.compile(r"<s>(.*?)</s>", re.DOTALL)
LENGTH_BYTES = 8


def read_articles(path, start=0, end=None, on_read=lambda size: None):
    """Yields the articles of a file.

    Yields:
        The paragraphs of an article and its highlights, two lists of texts without blank ones.
    """
    if named_like(path, ".story"):
        yield _story(path, on_read)
        return
    if named_like(path, ".bin"):
        yield from _records(path, start, end, on_read)
        return
    for row in text_sources.read_rows(path, ("article", "highlights"), start, end, on_read):
        yield _texts(row["article"]), _texts(row["highlights"])


def _texts(lines):
    """Returns the lines that are not blank, with single spaces between their words."""
    found = map(text_lines.columns, text_lines.split(lines))
    return [" ".join(words) for words in found if words]


def _joined(parts):
    """Returns the texts that are not blank, each as one line."""
    return [" ".join(words) for words in map(text_lines.words, parts) if words]


def _story(path, on_read):
    data = read_bytes(path)
    on_read(len(data))
    article, *highlights = text_lines.decode(data, path).split(MARK)
    return _texts(article), _joined(highlights)


def _records(path, start, end, on_read):
    """Reads the records that begin at `start` or later and before `end`; see `read_articles`."""
    size, position = os.path.getsize(path), 0
    with open_regular(path) as file:
        while position < (size if end is None else end):
            header = file.read(LENGTH_BYTES)
            length = int.from_bytes(header, "little", signed=True)
            following = position + LENGTH_BYTES + length
            if len(header) < LENGTH_BYTES or length < 0 or following > size:
                raise DataError(
                    f"{path}: at byte {position} must be the length of a record, 8 bytes, and "
                    f"then the record. Received: {length}, and {size - position} bytes to the "
                    "end. Fetch the file again."
                )
            if position < start:
                file.seek(length, os.SEEK_CUR)
            else:
                yield _example(file.read(length), f"{path}: the record at byte {position}")
                on_read(following - position)
            position = following


def _example(data, where):
    import tensorflow.compat.v1 as tf
    from google.protobuf.message import DecodeError

    try:
        features = tf.train.Example.FromString(data).features.feature
        article, abstract = (
            features[name].bytes_list.value[0].decode("utf-8") for name in ("article", "abstract")
        )
    except (DecodeError, IndexError, UnicodeDecodeError) as error:
        raise DataError(
            f"{where}: must be a tf.train.Example with a text article and a text abstract. "
            f"Received: {error}. Fetch the file again."
        ) from error
    return _texts(article), _joined(HIGHLIGHT.findall(abstract))
