"""Writes JSON lines that appear whole or not at all, as `write_whole` does text."""

from __future__ import annotations

import json

from cerebras_tf.whole_file import write_whole


def write_json_lines(path, rows):
    """Writes one JSON object a line, see `write_whole`."""
    return write_whole(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
