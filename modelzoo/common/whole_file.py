"""Writes text files that appear whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path


def write_whole(path, text):
    """Writes a text under another name, then puts it in its place.

    Args:
        path: file, whose folder is made if absent.
        text: its content.

    Returns:
        The path, a Path.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(text, encoding="utf-8")
        return partial.replace(path)
    except BaseException:  # such as a full disk
        partial.unlink(missing_ok=True)
        raise


def write_json_lines(path, rows):
    """Writes one JSON object a line, see `write_whole`."""
    return write_whole(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
