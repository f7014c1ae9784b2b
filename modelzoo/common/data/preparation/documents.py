"""Reads documents from text and JSON lines, compressed or in archives. It tokenizes nothing."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile

from cerebras_tf.errors import ConfigError, DataError
from modelzoo.common.data.preparation.input_files import named_like
from modelzoo.common.data.preparation.records import sha256_of
from modelzoo.common.files import json_text
from modelzoo.common.files.compressed import is_compressed, open_decompressed
from modelzoo.common.files.json_text import require_unicode
from modelzoo.common.files.text_lines import not_utf8

SUFFIXES = (
    *(".txt", ".txt.zst", ".txt.gz", ".jsonl", ".jsonl.zst", ".jsonl.gz"),
    *(".xz", ".tar.gz", ".tgz"),
)
BUFFER_BYTES = 1 << 17
TEXT_KEY = "text"  # where a row of JSON lines has its text
LISTED_FILES = 1000  # input files that a manifest names one by one
TAR_MAGIC = (b"ustar", 257)  # and its place in the first block of an archive


def refuse_idle_key(files, text_key):
    """Refuses a key of rows where no file can have rows."""
    if text_key != TEXT_KEY and not any(map(_may_have_rows, files)):
        raise ConfigError(
            "--text_key: must be used with JSON lines files (.jsonl), because other files are "
            f"read as text. Received: {text_key!r} with "
            f"{', '.join(map(str, files[:3]))}{', ...' if len(files) > 3 else ''}. Use .jsonl "
            "files, or remove it."
        )


def _may_have_rows(path):
    if named_like(path, ".jsonl") or is_compressed(path):
        return True
    with open(path, "rb") as file:
        return _is_archive(file)


def plan_units(files, unit_bytes):
    """Divides files into units of work of about `unit_bytes`, in order.

    Small files share a unit; large .jsonl and .bin files are divided. A text or compressed file
    stays whole.

    Returns:
        A list of units, each a list of (path, first byte, one past the last byte).
    """
    units: list[list[tuple[str, int, int]]] = []
    left = 0
    for path in files:
        size = os.path.getsize(path)
        step = unit_bytes if named_like(path, (".jsonl", ".bin")) else max(size, 1)
        for start in range(0, max(size, 1), step):
            if left <= 0:
                units.append([])
                left = unit_bytes
            end = min(start + step, size)
            units[-1].append((path, start, end))
            left -= end - start
    return units


def read_documents(path, text_key=TEXT_KEY, start=0, end=None, on_read=lambda size: None):
    """Yields the documents of a file as text.

    A text file is one document; each line of a jsonl file is an object with its text under
    `text_key`; the files of an archive are read like files by themselves. Blank lines and files are
    skipped, as is a byte order mark at the beginning of a file.

    Args:
        start: of a .jsonl file only rows that begin at this byte or later are read,
        end: and before this one; None for the end of the file.
    """
    for item in _read(path, (text_key,), start, end, on_read):
        yield item[text_key] if isinstance(item, dict) else item


def read_rows(path, keys, start=0, end=None, on_read=lambda size: None):
    """Yields the rows of a file of JSON lines, compressed or not, as dictionaries."""
    for item in _read(path, keys, start, end, on_read):
        if not isinstance(item, dict):
            raise DataError(
                f"{path}: must contain JSON objects with {', '.join(keys)}, one per line. "
                "Received: plain text. Use a .jsonl file."
            )
        yield item


def _read(path, keys, start, end, on_read):
    """Yields a dictionary a row, and the text of what has no rows."""
    # A row belongs to the part in which it begins, so an incomplete first line is skipped.
    with open(path, "rb", buffering=0) as file:
        file.seek(max(start - 1, 0))
        counted = io.BufferedReader(_Counted(file, on_read), BUFFER_BYTES)
        if named_like(path, ".jsonl"):
            skipped = len(counted.readline()) if start else 0
            position = max(start - 1, 0) + skipped
            yield from _rows(counted, path, keys, position, end)
            return
        packed = is_compressed(path)
        with open_decompressed(counted, path) if packed else counted as stream:
            if _is_archive(stream):
                yield from _members(stream, path, keys)
            else:
                name = path.rsplit(".", 1)[0] if packed else path
                yield from _documents(stream, path, keys, name)


class _Counted(io.RawIOBase):
    """A file that reports how much was read from it."""

    def __init__(self, file, on_read):
        self._file = file
        self._on_read = on_read

    def readable(self):
        return True

    def readinto(self, buffer):
        size = self._file.readinto(buffer)
        self._on_read(size)
        return size


def _is_archive(stream):
    return stream.peek(512)[TAR_MAGIC[1] :].startswith(TAR_MAGIC[0])


def _documents(stream, path, keys, name):
    if named_like(name, ".jsonl"):
        yield from _rows(stream, path, keys)
        return
    text = _decode(stream.read(), path, lambda: 1)
    if text:
        yield text


def _members(stream, path, keys):
    try:
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            for member in archive:
                if member.isfile():
                    file = archive.extractfile(member)
                    yield from _documents(file, f"{path}:{member.name}", keys, member.name)
        while stream.read(1 << 20):
            pass  # the end of the file after the archive is checked, too
    except tarfile.ReadError as error:
        raise DataError(
            f"{path}: must contain a complete tar archive. Received: {error}. Copy it again."
        ) from error


def _rows(stream, path, keys, position=0, end=None):
    first = position
    for number, line in enumerate(stream):
        if end is not None and position >= end:
            break
        if line.strip():

            def place(number=number):
                return 1 + number + _lines_before(path, first)

            text = _decode(line, path, place, first=position == 0)
            yield _row_of(text, path, place, keys)
        position += len(line)


def _lines_before(path, position):
    if not position:
        return 0
    count = 0
    with open(path, "rb") as file:
        while position > 0:
            block = file.read(min(position, 1 << 20))
            count += block.count(b"\n")
            position -= len(block)
    return count


def _decode(data, path, place, first=True):
    try:
        return data.decode("utf-8-sig" if first else "utf-8")  # a byte order mark is skipped
    except UnicodeDecodeError as error:
        line = place() + error.object[: error.start].count(b"\n")
        raise not_utf8(path, line, error) from error


def _row_of(line, path, place, keys):
    try:
        row = json_text.parse_json(line)
    except ValueError as error:
        raise DataError(
            f"{path}:{place()}: must be a JSON object. Received: {line[:60]!r} "
            f"({json_text.place(error)}). Correct or remove the line."
        ) from error
    named = row if isinstance(row, dict) else {}
    missing = [key for key in keys if not isinstance(named.get(key), str)]
    if missing:
        received = type(row).__name__
        if isinstance(row, dict):
            kinds = {key: f" ({type(row[key]).__name__})" for key in missing if key in row}
            received = ", ".join(f"{key}{kinds.get(key, '')}" for key in sorted(row)) or "no key"
        raise DataError(
            f"{path}:{place()}: must be a JSON object with text under "
            f"{' and '.join(map(repr, missing))}. Received: {received}. Correct or remove it, or "
            "set the key if there is an option for it (--text_key)."
        )
    for key in keys:
        require_unicode(row[key], f"{path}:{place()}")
    return row


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
    return {**vars(settings), "inputs": describe(files), "vocabulary": vocabulary, **more}
