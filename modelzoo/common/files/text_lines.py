"""Reads the lines of UTF-8 text, which end with LF or CRLF.

Nothing else ends a line: U+2028, U+0085, a form feed or a CR within a line are characters.
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

    Returns list of str without line ends, and without a byte order mark before the first.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise _unreadable(path, error, advice) from error
    return split(decode(data, path))


def numbered_lines(path, keep_blank=False):
    """Yields the lines of a UTF-8 text file that are not blank, each after its place."""
    for number, line in enumerate(read_lines(path), start=1):
        if keep_blank or line.strip():
            yield f"{path}:{number}", line


def split(text):
    """Returns the lines of a text without their ends; the last may lack its end."""
    lines = text.split(LF)
    if not lines[-1]:
        lines.pop()
    return [line.rstrip(CR) for line in lines]


def decode(data, path, line=1):
    """Returns the text of UTF-8 bytes; a byte order mark before the first line is skipped."""
    try:
        text = data.decode("utf-8-sig" if line == 1 else "utf-8")
    except UnicodeDecodeError as error:
        line += error.object[: error.start].count(LF.encode())
        raise not_utf8(path, line, error) from error
    if CR in text[:-1] and LF not in text:
        raise DataError(
            f"{path}: lines must end with LF or CRLF. Received: CR alone. Convert the file."
        )
    return text


def not_utf8(path, line, error):
    """Returns the DataError of a UnicodeDecodeError, with the number of its line and its byte."""
    received = f"byte 0x{error.object[error.start]:02x}"
    return DataError(
        f"{path}:{line}: must be UTF-8 text. Received: {received}. Convert or unpack the file."
    )


def line_ends(path, every):
    """Counts the lines of a file, which may be larger than memory.

    Returns the number of lines, and the bytes at which parts of `every` lines begin and the last
    one ends.
    """
    count, position, places, last = 0, 0, [0], LF.encode()
    try:
        with open(path, "rb") as file:
            while block := file.read(BLOCK_BYTES):
                ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord(LF)) + 1 + position
                # The end at index i here is that of line count + i + 1.
                places += ends[(-count - 1) % every :: every].tolist()
                count, position, last = count + len(ends), position + len(block), block[-1:]
    except OSError as error:
        raise _unreadable(path, error, "Check the path.") from error
    if last != LF.encode():
        count += 1
    if places[-1] != position:
        places.append(position)
    return count, places


def _unreadable(path, error, advice):
    return DataError(
        f"{path}: must be a readable text file. Received: {error.strerror}. "
        f"{advice_on_path(path, advice)}"
    )
