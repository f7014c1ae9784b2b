"""Splits users' text: the lines of UTF-8 text, and the columns and words of a line.

Lines end with LF or CRLF, or with CR in a text without LF. Nothing else ends a line: U+2028,
U+0085 and form feeds are characters, as is a CR within a line that ends with LF. Columns are
separated by what their format names. Quotes are characters in TSV, unlike in CSV.
`str.splitlines` and `str.split()` separate at more, so they are not used on data.
"""

import codecs
import functools
import re

import numpy as np

from cerebras_tf.api import get_logger
from cerebras_tf.errors import DataError
from cerebras_tf.user_files import open_regular, read_bytes
from modelzoo.common.files import compressed
from modelzoo.common.files.path_advice import advice_on_path

LF, CR = "\n", "\r"
BLANKS = " \t"  # what separates the columns of CoNLL files and the tokens of tokenized text
RUN_OF_BLANKS = re.compile(f"[{BLANKS}]+")
PACKED = (*compressed.SUFFIXES, ".bz2", ".zip", ".7z", ".lz4")  # ends of names
UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
BLOCK_BYTES = 1 << 20


def read_lines(path, advice="Check the path."):
    """Reads all lines of a file, also empty ones.

    Returns list of str without line ends, and without a byte order mark before the first.
    """
    try:
        data = read_bytes(path)
    except OSError as error:
        raise _unreadable(path, error, advice) from error
    return split(decode(data, path))


def numbered_lines(path, keep_blank=False):
    """Yields the lines of a UTF-8 text file that are not blank, each after its place."""
    for number, line in enumerate(read_lines(path), start=1):
        if keep_blank or line.strip():
            yield f"{path}:{number}", line


def split(text, end=None):
    """Returns the lines of a text without their ends; the last may lack its end.

    Args:
        end: LF (also for CRLF) or CR; None for CR in a text without LF, and else LF.
    """
    lines = text.split(end or line_end(text))
    if not lines[-1]:
        lines.pop()
    return [line.rstrip(CR) for line in lines]


def line_end(text):
    """Returns the last character of the line ends of a text, LF or CR."""
    return CR if CR in text and LF not in text else LF


def columns(line, separator=None):
    """Returns the columns of a line: at each `separator`, or, for None, at runs of BLANKS."""
    if separator is not None:
        return line.split(separator)
    line = line.strip(BLANKS)
    return RUN_OF_BLANKS.split(line) if line else []


def words(text):
    """Returns the columns of all lines of a text."""
    return [word for line in split(text) for word in columns(line)]


def warn_of_quotes(rows, path):
    """Yields rows of TSV, and logs a warning at the first field that is quoted as in CSV.

    Args:
        rows: pairs of the number of a line, and its columns.
    """
    warned = False
    for number, values in rows:
        if not warned and any(map(_is_quoted, values)):
            warned = True
            _warn(str(path), number)
        yield number, values


@functools.cache  # a file may be read twice
def _warn(path, number):
    get_logger().warning(
        "%s:%d: a column has doubled quotes within quotes, as in CSV. In TSV, quotes are "
        "characters of the text. Convert the file to CSV, or write it without quoting",
        path,
        number,
    )


def _is_quoted(value):
    inner = value[1:-1]
    return '""' in inner and value[0] == value[-1] == '"' and '"' not in inner.replace('""', "")


def decode(data, path, line=1):
    """Returns the text of UTF-8 bytes; a byte order mark before the first line is skipped."""
    try:
        text = data.decode("utf-8-sig" if line == 1 else "utf-8")
    except UnicodeDecodeError as error:
        end = line_end(data.decode("latin-1"))
        line += error.object[: error.start].count(end.encode())
        raise not_utf8(path, line, error) from error
    return text


def not_utf8(path, line, error):
    """Returns the DataError of a UnicodeDecodeError, with the number of its line and its byte."""
    received = f"byte 0x{error.object[error.start]:02x}"
    if error.object.startswith(UTF_16):
        received = "UTF-16, by its byte order mark"
    return DataError(
        f"{path}:{line}: must be UTF-8 text. Received: {received}. Convert or unpack the file."
    )


def line_ends(path, every):
    """Counts the lines of a file, which may be larger than memory.

    Returns the number of lines, the bytes at which parts of `every` lines begin and the last one
    ends, and how lines end, see `split`.
    """
    try:
        with open_regular(path) as file:
            for end in (LF, CR):
                count, places, size, last = _find_ends(file, end, every)
                if count:
                    break
            else:
                end = LF
    except OSError as error:
        raise _unreadable(path, error, "Check the path.") from error
    if last not in ("", end):
        count += 1
    if places[-1] != size:
        places.append(size)
    return count, places, end


def _find_ends(file, end, every):
    """Returns the number of `end`, the bytes after each `every`th, the size and the last byte."""
    count, position, places, last = 0, file.seek(0), [0], b""
    while block := file.read(BLOCK_BYTES):
        ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord(end)) + 1 + position
        # The end at index i here is that of line count + i + 1.
        places += ends[(-count - 1) % every :: every].tolist()
        count, position, last = count + len(ends), position + len(block), block[-1:]
    return count, places, position, last.decode("latin-1")


def _unreadable(path, error, advice):
    return DataError(
        f"{path}: must be a readable text file. Received: {error.strerror}. "
        f"{advice_on_path(path, advice)}"
    )
