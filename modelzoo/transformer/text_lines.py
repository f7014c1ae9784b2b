"""Reads sentences from text files, one a line. Every line is kept, also an empty one."""

from __future__ import annotations

from pathlib import Path

from cerebras_tf.errors import DataError
from modelzoo.common.path_advice import advice_on_path


def read_lines(paths):
    """Reads the lines of files one after another; only a line feed ends a line.

    Args:
        paths: list of files.

    Returns:
        List of str, without line feeds, carriage returns and a byte order mark before the first.

    Raises:
        DataError: names the file, and the line that is not UTF-8.
    """
    lines = []
    for path in paths:
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            advice = advice_on_path(path)
            raise DataError(
                f"{path}: must be a readable text file. Received: {error.strerror}. {advice}"
            ) from error
        lines += decode_lines(data, path)
    return lines


def decode_lines(data, path, first=1):
    """Splits bytes at line feeds.

    Args:
        data: whole lines.
        path: of their file.
        first: number of the first of them.

    Returns:
        List of str, without line feeds, carriage returns and a byte order mark before the first.

    Raises:
        DataError: names the line that is not UTF-8.
    """
    try:
        rows = data.decode("utf-8-sig" if first == 1 else "utf-8").split("\n")
    except UnicodeDecodeError as error:
        number = error.object[: error.start].count(b"\n") + first
        byte = error.object[error.start]
        raise DataError(
            f"{path}:{number}: must be UTF-8 text. Received: byte 0x{byte:02x}. "
            "Convert the file to UTF-8."
        ) from error
    return [row.rstrip("\r") for row in (rows if rows[-1] else rows[:-1])]


def read_pairs(sources, targets):
    """Reads two texts of the same number of lines.

    Args:
        sources: file or list of files.
        targets: file or list of files.

    Returns:
        Two lists of str.

    Raises:
        DataError: if their numbers of lines differ.
    """
    sources, targets = as_list(sources), as_list(targets)
    source_lines, target_lines = read_lines(sources), read_lines(targets)
    if len(source_lines) != len(target_lines):
        raise DataError(
            f"{', '.join(targets)}: must have as many lines as {', '.join(sources)}. Received: "
            f"{len(target_lines)} and {len(source_lines)}. Give two texts that belong together."
        )
    return source_lines, target_lines


def as_list(paths):
    """Returns a list of paths, also of one path."""
    return [paths] if isinstance(paths, str) else list(paths)
