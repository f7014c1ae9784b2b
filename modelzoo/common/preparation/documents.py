"""Reads documents from text, jsonl and jsonl.zst files. Deliberately tokenizes nothing."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
from pathlib import Path

from cerebras_tf.errors import DataError

SUFFIXES = (".txt", ".jsonl", ".jsonl.zst")
# Places where a long document may be cut without changing its tokens: the byte pair encodings used
# here begin a new word at a single space or line break between two other characters.
SAFE_CUT = re.compile(r"(?<=\S)(?=[ \n]\S)")


def find_inputs(paths):
    """Lists input files.

    Args:
        paths: files, or folders of which all files named like SUFFIXES are taken, at any depth.

    Returns:
        Sorted paths, each once.

    Raises:
        DataError: if a path is missing or a folder holds no such file.
    """
    found: set[str] = set()
    for path in map(Path, paths):
        if path.is_dir():
            inside = [p for p in path.rglob("*") if p.name.endswith(SUFFIXES) and p.is_file()]
        else:
            inside = [path] if path.is_file() else []
        if not inside:
            raise DataError(
                f"{path}: must be a file, or a folder with files {', '.join(SUFFIXES)}. Received: "
                f"{'a folder without any' if path.is_dir() else 'no such path'}. Check the path."
            )
        found.update(map(str, inside))
    return sorted(found)


def read_documents(path, text_key="text"):
    """Yields the documents of a file as text.

    A text file is one document; each line of a jsonl file is an object with its text under
    `text_key`. Blank lines are left out.

    Raises:
        DataError: with file and line, for a row that cannot be read.
    """
    if not path.endswith((".jsonl", ".jsonl.zst")):
        yield _decode(Path(path).read_bytes(), path, 1)
        return
    with _open_lines(path) as lines:
        for number, line in enumerate(_guarded(lines, path), start=1):
            if line.strip():
                yield _text_of(_decode(line, path, number), path, number, text_key)


@contextlib.contextmanager
def _open_lines(path):
    with open(path, "rb") as file:
        if not path.endswith(".zst"):
            yield file
            return
        import zstandard

        reader = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
        yield io.BufferedReader(reader, 1 << 20)


def _guarded(lines, path):
    number = 0
    try:
        for line in lines:
            number += 1
            yield line
    except Exception as error:  # zstandard's error type, without importing it for plain files
        if type(error).__name__ != "ZstdError":
            raise
        raise DataError(
            f"{path}:{number + 1}: must be a whole zstd file. Received: {error}. Copy it again."
        ) from error


def _decode(data, path, first_line):
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = first_line + data[: error.start].count(b"\n")
        raise DataError(
            f"{path}:{line}: must be UTF-8 text. Received: byte 0x{data[error.start]:02x}. "
            "Convert the file to UTF-8."
        ) from error


def _text_of(line, path, number, text_key):
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(
            f"{path}:{number}: must be a JSON object. Received: {line[:60]!r} ({error.msg} at "
            f"column {error.colno}). Mend or remove the line."
        ) from error
    text = row.get(text_key) if isinstance(row, dict) else None
    if not isinstance(text, str):
        keys = ", ".join(sorted(row)) if isinstance(row, dict) else type(row).__name__
        raise DataError(
            f"{path}:{number}: must be a JSON object with its text under {text_key!r}. Received: "
            f"{keys}. Name the key with --text_key."
        )
    return text


def split_document(text, limit=1 << 20):
    """Cuts a long document where that changes no token.

    Args:
        text: the document.
        limit: characters after which the next safe place is taken.

    Returns:
        Pieces that join to `text`.
    """
    pieces, start = [], 0
    while len(text) - start > limit:
        cut = SAFE_CUT.search(text, start + limit)
        if cut is None:
            break
        pieces.append(text[start : cut.start()])
        start = cut.start()
    return [*pieces, text[start:]]


def group_files(files, group_bytes):
    """Groups files, in order, so that each group but the last has at least `group_bytes`."""
    groups: list[list[str]] = [[]]
    size = 0
    for path in files:
        if size >= group_bytes:
            groups.append([])
            size = 0
        groups[-1].append(path)
        size += os.path.getsize(path)
    return groups
