"""Reads parallel text: sentences and their translations, one a line, also empty ones."""

from __future__ import annotations

from cerebras_tf.errors import DataError
from modelzoo.common.files import text_lines


def read_sentences(paths):
    """Reads the lines of files one after another.

    Args:
        paths: list of files.

    Returns:
        List of str; see text_lines.read_lines.

    Raises:
        DataError: names the file, and the line that is not UTF-8.
    """
    return [line for path in paths for line in text_lines.read_lines(path)]


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
    source_lines, target_lines = read_sentences(sources), read_sentences(targets)
    if len(source_lines) != len(target_lines):
        raise DataError(
            f"{', '.join(targets)}: must have as many lines as {', '.join(sources)}. Received: "
            f"{len(target_lines)} and {len(source_lines)}. Give two texts that belong together."
        )
    return source_lines, target_lines


def as_list(paths):
    """Returns a list of paths, also of one path."""
    return [paths] if isinstance(paths, str) else list(paths)
