"""Reads documents and rows from text, JSON lines, CSV, Parquet and Arrow, also compressed.

The name of a file tells its form; its first bytes are checked. It tokenizes nothing.
"""

from __future__ import annotations

import csv
import functools
import io
import math
import os
import re
import sys
import tarfile
import textwrap
from collections.abc import Iterator
from typing import Any

from cerebras_tf.api import get_logger
from cerebras_tf.errors import ConfigError, DataError
from cerebras_tf.installing import pip_install
from cerebras_tf.user_files import open_regular
from modelzoo.common.files import json_text, text_lines
from modelzoo.common.files.compressed import is_compressed, open_decompressed
from modelzoo.common.files.json_text import require_unicode

TEXT_KEY = "text"  # where a row has its text
TEXT, JSON_LINES, CSV, TSV, PARQUET, ARROW = "text", "JSON lines", "CSV", "TSV", "Parquet", "Arrow"
# Forms by the end of a name in lower case; other names are text.
FORMS = {
    ".txt": TEXT,
    ".jsonl": JSON_LINES,
    ".ndjson": JSON_LINES,
    ".json": JSON_LINES,
    ".csv": CSV,
    ".tsv": TSV,
    ".parquet": PARQUET,
    ".arrow": ARROW,  # the streams of datasets' save_to_disk
}
SEPARATORS = {CSV: ",", TSV: "\t"}
# Ends of the names that are read in folders.
SUFFIXES = (
    *(".txt", ".txt.zst", ".txt.gz", ".jsonl", ".jsonl.zst", ".jsonl.gz"),
    *(".ndjson", ".csv", ".csv.zst", ".csv.gz", ".tsv", ".tsv.zst", ".tsv.gz", ".parquet"),
    ".arrow",
    *(".xz", ".tar.gz", ".tgz"),
)
DIVISIBLE = (".jsonl", ".ndjson", ".parquet")  # names of files that can be read in parts
BUFFER_BYTES = 1 << 17
HEAD_BYTES = 4096  # that are checked before a file is read as text
OTHERS = (b"%PDF-", b"{\\rtf", b"PK\3\4", b"ARROW1", b"SQLite format")  # their first bytes
COMPRESSED = (b"\x1f\x8b", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd", b"7z\xbc\xaf", b"BZh91AY")
SHOWN_CHARACTERS = 200  # of the names of columns, in a message
NUL_SHARE = 16  # a text has at most one NUL among as many bytes
ROW = re.compile(rb'(\xef\xbb\xbf)?\s*(\[\s*)?\{\s*"[^"]*"\s*:')  # the first object of JSON
ARRAY = re.compile(rb"(\xef\xbb\xbf)?\s*\[")
LINE_END = re.compile(rb"\r\n?|\n")
COLUMN = re.compile(r'("?)[A-Za-z_][\w.-]*\1')  # the name of a column in a header
PARQUET_MAGIC = b"PAR1"
TAR_MAGIC = (b"ustar", 257)  # and its place in the first block of an archive
ROWS_AT_A_TIME = 1024  # of a Parquet file


def form_of(path):
    """Returns the form of a file, one of FORMS' values, by its name and its first bytes.

    A compressed file has the form of its name without the end of the compression.
    """
    form = _form_of_name(path)
    if form == TEXT and not is_compressed(path):
        with open_regular(path) as file:
            if file.read(len(PARQUET_MAGIC)) == PARQUET_MAGIC:
                return PARQUET
    return form


def require_text(path):
    """Raises a DataError if a file of lines has another form, by its name or its first bytes."""
    form = form_of(path)
    if form != TEXT or is_compressed(path):
        raise DataError(
            f"{path}: must be a text file with lines. Received: a file of {form}"
            f"{', compressed' if is_compressed(path) else ''}, according to its name or its first "
            "bytes. Convert it to lines of text."
        )
    with open_regular(path) as file:
        check_is_text(file.read(HEAD_BYTES), path, path)


def has_rows(path):
    """Whether a file has rows with keys, or may have them because it is an archive."""
    with open_regular(path) as file:
        return form_of(path) != TEXT or is_compressed(path) or _is_archive(file)


def read_documents(path, text_key=TEXT_KEY, start=0, end=None, on_read=lambda size: None):
    """Yields the documents of a file as text.

    A text file is one document; a row of another form is one, its text under `text_key`; the files
    of an archive are read like files by themselves. Blank lines and files are skipped, as is a byte
    order mark at the beginning of a file.

    Args:
        start: of a file named like DIVISIBLE only rows that begin at this byte or later are read
            (in Parquet, row groups),
        end: and before this one; None for the end of the file.
        on_read: called with the number of bytes that were read since its last call.
    """
    for item in _read(path, (text_key,), start, end, on_read):
        yield item[text_key] if isinstance(item, dict) else item


def read_rows(path, keys, start=0, end=None, on_read=lambda size: None):
    """Yields the rows of a file as dictionaries that have text under `keys`."""
    for item in _read(path, keys, start, end, on_read):
        if not isinstance(item, dict):
            raise DataError(
                f"{path}: must contain rows with {', '.join(keys)}. Received: plain text. Use a "
                ".jsonl, .csv or .parquet file."
            )
        yield item


def _form_of_name(name):
    name = name.lower()
    if is_compressed(name):
        name = name.rsplit(".", 1)[0]
    return next((form for end, form in FORMS.items() if name.endswith(end)), TEXT)


def _read(path, keys, start, end, on_read) -> Iterator[Any]:
    """Yields a dictionary a row, and the text of what has no rows."""
    form, packed = form_of(path), is_compressed(path)
    # A row belongs to the part in which it begins, so an incomplete first line is skipped.
    with open_regular(path) as file:
        if form == PARQUET and not packed:
            yield from _parquet_rows(file, path, keys, start, end, on_read)
            return
        file.seek(max(start - 1, 0))
        counted = io.BufferedReader(_Counted(file, start, end, on_read), BUFFER_BYTES)
        if form == ARROW and not packed:
            yield from _arrow_rows(counted, path, keys)
            return
        if form == JSON_LINES and not packed:
            skipped = len(counted.readline()) if start else 0
            position = max(start - 1, 0) + skipped
            yield from _json_rows(counted, path, keys, position, end)
            return
        with open_decompressed(counted, path) if packed else counted as stream:
            if _is_archive(stream):
                yield from _members(stream, path, keys)
            else:
                yield from _items(stream, path, keys, path)


class _Counted(io.RawIOBase):
    """A file that reports how much of a part of it was read."""

    def __init__(self, file, start, end, on_read):
        self._file = file
        self._position = file.tell()
        self._start, self._end = start, math.inf if end is None else end
        self._on_read = on_read

    def readable(self):
        return True

    def readinto(self, buffer):
        size = self._file.readinto(buffer)
        first, self._position = max(self._position, self._start), self._position + size
        self._on_read(max(min(self._position, self._end) - first, 0))
        return size


def _is_archive(stream):
    return stream.peek(512)[TAR_MAGIC[1] :].startswith(TAR_MAGIC[0])


def _members(stream, path, keys):
    try:
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            for member in archive:
                if member.isfile():
                    file = archive.extractfile(member)
                    yield from _items(file, f"{path}:{member.name}", keys, member.name)
        while stream.read(1 << 20):
            pass  # the end of the file after the archive is checked, too
    except tarfile.ReadError as error:
        raise DataError(
            f"{path}: must contain a complete tar archive. Received: {error}. Copy it again."
        ) from error


def _items(stream, path, keys, name):
    """Yields the rows or the text of a stream that has the form of a name."""
    form = _form_of_name(name)
    if form == JSON_LINES:
        yield from _json_rows(stream, path, keys)
    elif form in SEPARATORS:
        yield from _table_rows(stream, path, keys, SEPARATORS[form])
    elif form == PARQUET:
        yield from _parquet_rows(io.BytesIO(stream.read()), path, keys)
    elif form == ARROW:
        yield from _arrow_rows(stream, path, keys)
    else:
        data = stream.read()
        check_is_text(data[:HEAD_BYTES], path, name)
        text = text_lines.decode(data, path)
        if text:
            yield text


def check_is_text(head, path, name):
    """Raises a DataError for the first bytes of a file of another form than its name's.

    Args:
        head: up to HEAD_BYTES.
    """
    if head.startswith(COMPRESSED):
        raise DataError(
            f"{path}: must be UTF-8 text. Received: a compressed file, by its first bytes. "
            "Unpack it, or give it the name of its compression (.gz, .xz, .zst)."
        )
    advice = f"Convert it, or give it the name of its form ({', '.join(FORMS)})."
    if head.startswith(OTHERS):
        received = "PDF, RTF, a zip archive, a database or the like, according to its first bytes"
    elif head.count(0) * NUL_SHARE > len(head):
        received, advice = "many NUL bytes, as of UTF-16 or a binary file", "Convert it to UTF-8."
    elif not ROW.match(head):
        if end := _end_of_table(head):
            _warn_of_rows(path, "CSV", end)
        return
    elif ".txt" in name.lower():
        _warn_of_rows(path, "JSON", ".jsonl")
        return
    else:
        received = "JSON, according to the beginning"
    raise DataError(f"{path}: must be UTF-8 text. Received: {received}. {advice}")


def _end_of_table(head):
    """Returns .csv or .tsv for a header of names and rows with as many columns, and else None."""
    text = head.decode("utf-8-sig", errors="replace")
    for separator in (",", ";", "\t"):
        names = text_lines.split(text)[0].split(separator) if text else []
        if len(names) < 2 or not all(map(COLUMN.fullmatch, names)):
            continue
        try:
            _, *rows = filter(None, csv.reader(io.StringIO(text, newline=""), delimiter=separator))
        except csv.Error:
            continue
        # The last row may be cut, also within quotes.
        *whole, last = map(len, rows or [[]])
        cut = len(head) >= HEAD_BYTES and 0 < last < len(names) and (whole or '\n"' in text)
        if all(width == len(names) for width in whole) and (last == len(names) or cut):
            return ".tsv" if separator == "\t" else ".csv"
    return None


@functools.cache  # a file may be read twice
def _warn_of_rows(path, form, end):
    get_logger().warning(
        "%s: begins as %s and is read as plain text, because of its name. If it has rows, rename "
        "it to %s",
        path,
        form,
        end,
    )


# ---- JSON lines


def _json_rows(stream, path, keys, position=0, end=None):
    first = position
    if position == 0 and ARRAY.match(stream.peek(HEAD_BYTES)):
        yield from _json_array(stream, path, keys)
        return
    number = 0
    for line in stream:
        if end is not None and position >= end:
            break
        # A CR is no part of a JSON string, so that it may end a line in any file.
        for part in line.rstrip(b"\r\n").split(b"\r"):
            if part.strip():

                def place(number=number):
                    return 1 + number + _lines_before(path, first)

                text = _decode(part, path, place, first=position == 0)
                yield _row_of(text, path, place, keys)
            number += 1
        position += len(line)


def _json_array(stream, path, keys):
    text = text_lines.decode(stream.read(), path)
    try:
        rows = json_text.parse_json(text)
    except ValueError as error:
        raise DataError(
            f"{path}: must be a JSON array of objects. Received: {json_text.place(error)}. Correct "
            "it, or use JSON lines."
        ) from error
    for number, row in enumerate(rows, start=1):
        yield _checked(row, f"{path}: item {number}", keys)


def _lines_before(path, position):
    if not position:
        return 0
    count = 0
    with open_regular(path) as file:
        while position > 0:
            block = file.read(min(position, 1 << 20))
            count += block.count(b"\n")
            position -= len(block)
    return count


def _decode(data, path, place, first=True):
    try:
        return data.decode("utf-8-sig" if first else "utf-8")  # a byte order mark is skipped
    except UnicodeDecodeError as error:
        raise text_lines.not_utf8(path, place(), error) from error


def _row_of(line, path, place, keys):
    try:
        row = json_text.parse_json(line)
    except ValueError as error:
        raise DataError(
            f"{path}:{place()}: must be a JSON object. Received: {line[:60]!r} "
            f"({json_text.place(error)}). Correct or remove the line."
        ) from error
    if not isinstance(row, dict) or not all(isinstance(row.get(key), str) for key in keys):
        return _checked(row, f"{path}:{place()}", keys)
    for key in keys:
        require_unicode(row[key], f"{path}:{place()}")
    return row


def _checked(row, where, keys):
    """Returns a row that has text under all keys, and raises a DataError for another."""
    named = row if isinstance(row, dict) else {}
    missing = [key for key in keys if not isinstance(named.get(key), str)]
    if missing:
        received = type(row).__name__
        if isinstance(row, dict):
            kinds = {key: f" ({type(row[key]).__name__})" for key in missing if key in row}
            received = _shown(f"{key}{kinds.get(key, '')}" for key in sorted(row)) or "no key"
        raise DataError(
            f"{where}: must be a row with text under {' and '.join(map(repr, missing))}. Received: "
            f"{received}. Correct or remove it, or set the key (--text_key, or text_key of the "
            "input section)."
        )
    for key in keys:
        require_unicode(row[key], where)
    return row


def _shown(names):
    """Returns names for a message; a file without a header may have long texts in their place."""
    return textwrap.shorten(", ".join(names), SHOWN_CHARACTERS, placeholder=" ...")


# ---- CSV, Parquet and Arrow


def _table_rows(stream, path, keys, separator):
    """Yields the rows of a table with a header; quoted fields of CSV may have line ends."""
    csv.field_size_limit(sys.maxsize)  # the library's limit is 131072 characters
    text = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
    if quotes := separator == SEPARATORS[CSV]:
        reader = csv.reader(text, delimiter=separator, strict=True)
    else:
        reader = csv.reader(text, delimiter=separator, quoting=csv.QUOTE_NONE, strict=True)
    rows = ((reader.line_num, values) for values in reader if values)  # without blank lines
    advice = ""
    if not quotes:
        rows = text_lines.warn_of_quotes(rows, path)
        advice = ". Quotes are characters in TSV: a column cannot contain a tab or a line end"
    names: list[str] = []
    try:
        for line, values in rows:
            where = f"{path}:{line}"
            if not names:
                names = values
                _check_columns(names, where, keys)
            elif len(values) == len(names):
                yield dict(zip(names, values))
            else:
                raise DataError(
                    f"{where}: must have {len(names)} columns, like the header. Received: "
                    f"{len(values)}. Correct or remove the row{advice}."
                )
    except csv.Error as error:
        raise DataError(
            f"{path}:{reader.line_num}: must be a row of CSV. Received: {error}. Correct the row."
        ) from error
    except UnicodeDecodeError as error:
        before = LINE_END.findall(error.object[: error.start])  # lines not yet read by the reader
        raise text_lines.not_utf8(path, reader.line_num + 1 + len(before), error) from error


def _check_columns(names, where, keys):
    wrong = [key for key in keys if names.count(key) != 1]
    if wrong:
        raise DataError(
            f"{where}: must have one column {' and '.join(map(repr, wrong))}. Received: "
            f"{_shown(names)}. Set the column (--text_key, or text_key of the input section)."
        )


def _parquet_rows(file, path, keys, start=0, end=None, on_read=lambda size: None):
    """Yields the rows of the row groups that begin from `start` to `end`, with `keys` only."""
    pyarrow = _import_pyarrow(path)
    from pyarrow import parquet

    number, unread = 0, (file.seek(0, os.SEEK_END) if end is None else end) - start
    try:
        table = parquet.ParquetFile(file)
        _check_columns(table.schema_arrow.names, path, keys)
        for group in range(table.num_row_groups):
            described = table.metadata.row_group(group)
            column = described.column(0)
            begin = min(filter(None, (column.dictionary_page_offset, column.data_page_offset)))
            if start <= begin and (end is None or begin < end):
                count = number
                for batch in table.iter_batches(ROWS_AT_A_TIME, [group], columns=list(keys)):
                    for row in batch.to_pylist():
                        count += 1
                        yield _checked(row, f"{path}: row {count}", keys)
                size = sum(described.column(i).total_compressed_size for i in _all(described))
                on_read(min(size, unread))
                unread -= min(size, unread)
            number += described.num_rows
        on_read(unread)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(
            f"{path}: must be a complete Parquet file. Received: {error}. Copy it again."
        ) from error


def _arrow_rows(stream, path, keys):
    """Yields the rows of a stream of record batches, with `keys` only."""
    pyarrow = _import_pyarrow(path)
    number = 0
    try:
        with pyarrow.ipc.open_stream(stream) as batches:
            _check_columns(batches.schema.names, path, keys)
            for batch in batches:
                for start in range(0, batch.num_rows, ROWS_AT_A_TIME):
                    for row in batch.select(list(keys)).slice(start, ROWS_AT_A_TIME).to_pylist():
                        number += 1
                        yield _checked(row, f"{path}: row {number}", keys)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(
            f"{path}: must be a complete stream of Arrow, as datasets.save_to_disk writes it. "
            f"Received: {error}. Copy it again."
        ) from error


def _import_pyarrow(path):
    try:
        import pyarrow
    except ImportError as error:
        raise ConfigError(
            f"{path}: needs the package pyarrow. Received: {error}. Run: {pip_install('pyarrow')}"
        ) from error
    return pyarrow


def _all(group):
    return range(group.num_columns)
