"""Divides input files into units of work, and describes them in a manifest."""

from __future__ import annotations

import hashlib
import json
import os

from cerebras_tf.errors import ConfigError
from modelzoo.common.data.preparation.input_files import named_like
from modelzoo.common.data.preparation.records import sha256_of
from modelzoo.common.files import text_sources
from modelzoo.common.tokenizers.tokenizers import normalization, usual_normalization

LISTED_FILES = 1000  # input files that a manifest names one by one


def refuse_idle_key(files, text_key):
    """Refuses a key of rows where no file can have rows."""
    if text_key != text_sources.TEXT_KEY and not any(map(text_sources.has_rows, files)):
        raise ConfigError(
            "--text_key: must be used with files of rows (.jsonl, .csv, .tsv or .parquet), because "
            f"other files are read as text. Received: {text_key!r} with "
            f"{', '.join(map(str, files[:3]))}{', ...' if len(files) > 3 else ''}. Use such files, "
            "or remove it."
        )


def plan_units(files, unit_bytes):
    """Divides files into units of work of about `unit_bytes`, in order.

    Small files share a unit; large files of JSON lines, Parquet and .bin are divided. A text or
    compressed file stays whole.

    Returns:
        A list of units, each a list of (path, first byte, one past the last byte).
    """
    units: list[list[tuple[str, int, int]]] = []
    left = 0
    for path in files:
        size = os.path.getsize(path)
        step = unit_bytes if named_like(path, (*text_sources.DIVISIBLE, ".bin")) else max(size, 1)
        for start in range(0, max(size, 1), step):
            if left <= 0:
                units.append([])
                left = unit_bytes
            end = min(start + step, size)
            units[-1].append((path, start, end))
            left -= end - start
    return units


def describe(files):
    """Returns what a manifest holds of input files, so that a changed one is noticed.

    That is path, bytes and SHA-256 of each, or a sum for many. Hashing reads every file once, at a
    hundred times the speed of tokenizing it.
    """
    listed = [[path, os.path.getsize(path), sha256_of(path)] for path in files]
    if len(listed) <= LISTED_FILES:
        return listed
    digest = hashlib.sha256(json.dumps(listed).encode("utf-8")).hexdigest()
    return {"files": len(listed), "bytes": sum(size for _, size, _ in listed), "sha256": digest}


def describe_settings(settings, files, **more):
    """Returns what a manifest holds as settings: those given, and the files that they depend on."""
    named = (getattr(settings, key, None) for key in ("vocab_file", "encoder_file"))
    vocabulary = describe([path for path in named if path])
    lower_case = getattr(settings, "do_lower_case", None)
    if lower_case is not None and getattr(settings, "vocab_file", None):
        rules = normalization(settings.vocab_file, lower_case)
        more |= {} if rules == usual_normalization(lower_case) else {"normalization": rules}
    return {**vars(settings), "inputs": describe(files), "vocabulary": vocabulary, **more}
