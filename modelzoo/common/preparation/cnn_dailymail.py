"""Reads articles and their highlights from CNN/DailyMail, as JSON lines or as ``.story`` files.

A row has its article under ``article`` and its highlights, one a line, under ``highlights``. A
story has paragraphs, then each highlight after a line ``@highlight`` (Hermann et al., Teaching
Machines to Read and Comprehend, 2015). It deliberately tokenizes nothing.
"""

from __future__ import annotations

from pathlib import Path

from cerebras_tf.errors import DataError
from modelzoo.common.preparation import documents

SUFFIXES = (".story", ".jsonl", ".jsonl.zst", ".jsonl.gz", ".jsonl.xz")
MARK = "@highlight"


def read_articles(path, start=0, end=None, on_read=lambda size: None):
    """Yields the articles of a file.

    Args:
        path: a .story file, or JSON lines, compressed or not.
        start: see documents.read_documents.
        end: see documents.read_documents.
        on_read: called with the bytes read since its last call.

    Yields:
        The paragraphs of an article and its highlights, two lists of texts without blank ones.

    Raises:
        DataError: names the file and line of what cannot be read.
    """
    if path.endswith(".story"):
        yield _story(path, on_read)
        return
    for row in documents.read_rows(path, ("article", "highlights"), start, end, on_read):
        yield _texts(row["article"]), _texts(row["highlights"])


def _texts(lines):
    return [" ".join(line.split()) for line in lines.split("\n") if line.strip()]


def _story(path, on_read):
    data = Path(path).read_bytes()
    on_read(len(data))
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = 1 + data[: error.start].count(b"\n")
        raise DataError(
            f"{path}:{line}: must be UTF-8 text. Received: byte 0x{data[error.start]:02x}. Convert "
            "the file to UTF-8."
        ) from error
    article, *highlights = text.split(MARK)
    return _texts(article), [" ".join(part.split()) for part in highlights if part.strip()]
