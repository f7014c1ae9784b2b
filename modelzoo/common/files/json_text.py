"""Reads the JSON and JSON lines of users' files, and writes JSON lines."""

import json

from cerebras_tf.errors import DataError
from cerebras_tf.user_files import parse_json, reason
from cerebras_tf.whole_file import write_whole
from modelzoo.common.files import text_lines


def place(error):
    """Returns the text of an error of `parse_json`, with its column if it has one."""
    if not isinstance(error, json.JSONDecodeError):
        return reason(error)
    return f"{error.msg.removesuffix(' at')} at column {error.colno}"


def read_json_lines(path):
    """Yields the rows of a jsonl file; blank lines are skipped.

    Yields:
        The place of the row, ``<path>:<line>``, and its object, where numbers may be NaN or
        infinite: a row is not refused for what nobody reads.
    """
    for where, line in text_lines.numbered_lines(path):
        try:
            row = parse_json(line)
        except ValueError as error:
            raise DataError(
                f"{where}: must be JSON. Received: {line[:60]!r} ({place(error)}). Correct it."
            ) from error
        if not isinstance(row, dict):
            raise DataError(
                f"{where}: must be an object. Received: {line[:60]!r}. Correct the line."
            )
        yield where, row


def text_of(row, key, where):
    """Returns the text under `key` of a row."""
    if not isinstance(row.get(key), str):
        raise DataError(
            f"{where}: {key} must be a string. Received: {row.get(key)!r} among the keys "
            f"{', '.join(row) or 'none'}. Correct the line."
        )
    require_unicode(row[key], where)
    return row[key]


def require_unicode(text, where):
    """Raises a DataError if a text has half of a character, as JSON's \\ud800 writes one.

    Python also decodes bytes of arguments that are not UTF-8 as such halves.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        found = text[error.start]
        received = f"{found!r}, half of a character (a lone surrogate)"
        if "\udc80" <= found <= "\udcff":
            received = f"byte 0x{ord(found) - 0xDC00:02x}, which is not UTF-8"
        raise DataError(
            f"{where}: must be Unicode text. Received: {received}. Correct it."
        ) from error


def write_json_lines(path, rows):
    """Writes one JSON object a line, see `write_whole`."""
    return write_whole(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
