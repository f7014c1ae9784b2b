"""Reads jsonl files: one JSON object a line."""

from __future__ import annotations

from cerebras_tf.errors import DataError
from modelzoo.common.files import text_lines
from modelzoo.common.files.json_text import parse_json, place


def read_json_lines(path):
    """Yields the rows of a jsonl file; blank lines are left out.

    Args:
        path: the file.

    Yields:
        The place of the row, ``<path>:<line>``, and its object, where numbers may be NaN or
        infinite: a row is not refused for what nobody reads.

    Raises:
        DataError: with file and line, if the file is missing or a line is no JSON object.
    """
    for where, line in text_lines.placed_lines(path):
        try:
            row = parse_json(line, finite=False)
        except ValueError as error:
            raise DataError(
                f"{where}: must be JSON. Received: {line[:60]!r} ({place(error)}). Mend the line."
            ) from error
        if not isinstance(row, dict):
            raise DataError(
                f"{where}: must be an object of keys. Received: {line[:60]!r}. Mend the line."
            )
        yield where, row


def text_of(row, key, where):
    """Returns the text under `key` of a row.

    Raises:
        DataError: if it is missing or no text; `where` is the row's place.
    """
    if not isinstance(row.get(key), str):
        raise DataError(
            f"{where}: {key} must be a text. Received: {row.get(key)!r} among the keys "
            f"{', '.join(row) or 'none'}. Mend the line."
        )
    require_unicode(row[key], where)
    return row[key]


def require_unicode(text, where):
    """Raises a DataError if a text of JSON has half of a character, as \\ud800 writes one."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(
            f"{where}: must be text of whole characters. Received: {text[error.start]!r}, which is "
            "half of one. Mend the line."
        ) from error
