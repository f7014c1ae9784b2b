"""Reads the lines of UTF-8 text, whichever way they end.

A line ends with LF or CRLF. Text without any LF is of systems whose lines end with CR; in text with
LF a CR within a line is a character of it. Nothing else ends a line: U+2028, U+0085 or a form feed
are characters.
"""

from pathlib import Path

import numpy as np

from cerebras_tf.errors import DataError
from modelzoo.common.files import compressed
from modelzoo.common.files.path_advice import advice_on_path

LF, CR = "\n", "\r"
PACKED = (*compressed.SUFFIXES, ".bz2", ".zip", ".7z", ".lz4")  # ends of names
BLOCK_BYTES = 1 << 20


def read_lines(path, advice="Check the path."):
    """Reads all lines of a file, also empty ones.

    Returns:
        List of str without line ends, and without a byte order mark before the first.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise _unreadable(path, error, advice) from error
    return split(decode(data, path))


def placed_lines(path, keep_blank=False):
    """Yields the lines of a UTF-8 text file that are not blank, each after its place.

    Args:
        path: the file; a byte order mark before its text is skipped.
    """
    for number, line in enumerate(read_lines(path), start=1):
        if keep_blank or line.strip():
            yield f"{path}:{number}", line


def split(text, end=None):
    """Splits text into its lines.

    Args:
        text: whole lines; the last may lack its end.
        end: LF or CR, where `text` is a part of what `line_ends` found it for.

    Returns:
        List of str without line ends.
    """
    end = end or (LF if LF in text else CR)
    lines = text.split(end)
    if not lines[-1]:
        lines.pop()
    return [line.rstrip(CR) for line in lines]


def decode(data, path, line=1, end=None):
    """Decodes UTF-8; a byte order mark before the first line is skipped.

    Returns:
        str.
    """
    try:
        return data.decode("utf-8-sig" if line == 1 else "utf-8")
    except UnicodeDecodeError as error:
        end = end or (LF if LF.encode() in data else CR)
        line += error.object[: error.start].count(end.encode())
        raise not_utf8(path, line, error) from error


def not_utf8(path, line, error):
    """Returns the DataError of a UnicodeDecodeError, with the number of its line and its byte."""
    received = f"byte 0x{error.object[error.start]:02x}"
    return DataError(
        f"{path}:{line}: must be UTF-8 text. Received: {received}. Convert or unpack the file."
    )


def line_ends(path, every):
    """Counts the lines of a file, which may be larger than memory.

    Returns:
        The number of lines, the bytes at which parts of `every` lines begin and the last one ends,
        and what ends a line, LF or CR.
    """
    try:
        count, places = _ends_of(path, every, LF)
        if count > 1 or _last_byte(path) == LF.encode():
            return count, places, LF
        return *_ends_of(path, every, CR), CR
    except OSError as error:
        raise _unreadable(path, error, "Check the path.") from error


def _ends_of(path, every, end):
    count, position, places, last = 0, 0, [0], end.encode()
    with open(path, "rb") as file:
        while block := file.read(BLOCK_BYTES):
            ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord(end)) + 1 + position
            # The end at index i here is that of line count + i + 1.
            places += ends[(-count - 1) % every :: every].tolist()
            count, position, last = count + len(ends), position + len(block), block[-1:]
    if last != end.encode():
        count += 1
    if places[-1] != position:
        places.append(position)
    return count, places


def _last_byte(path):
    with open(path, "rb") as file:
        file.seek(max(file.seek(0, 2) - 1, 0))
        return file.read(1)


def _unreadable(path, error, advice):
    return DataError(
        f"{path}: must be a readable text file. Received: {error.strerror}. "
        f"{advice_on_path(path, advice)}"
    )
