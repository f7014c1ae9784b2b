"""Reads compressed files to an end that is verified, also where the format's own readers do not.

A stream of ``zstandard`` that is cut off looks like a shorter one, and ``lzma`` ignores what
follows a stream.
"""

import io
import lzma
import zlib
from typing import Any

from cerebras_tf.errors import ConfigError, DataError
from cerebras_tf.installing import pip_install

SUFFIXES = (".gz", ".tgz", ".xz", ".zst")
PADDED = (".gz", ".tgz", ".xz")  # zeros may follow a stream of these
CHUNK_BYTES = 1 << 12  # compressed bytes at a time; some make a hundred thousand times as many
BUFFER_BYTES = 1 << 20
KNOWN = (zlib.error, lzma.LZMAError)
GZIP_WINDOW = 31  # zlib's wbits for a gzip header and trailer


def is_compressed(path):
    """Whether a path is named like a compressed file."""
    return path.lower().endswith(SUFFIXES)


def open_decompressed(file, path):
    """Returns a buffered reader of the bytes that `file` holds compressed.

    A file may be several streams, concatenated. Reading to the end raises a DataError for a file
    that ends within a stream, holds none, fails a checksum, or has something else after them.
    """
    return io.BufferedReader(_Decompressed(file, path, _opener(path)), BUFFER_BYTES)


def _opener(path):
    """Returns a function that makes the decompressor of one stream."""
    if path.lower().endswith((".gz", ".tgz")):
        return lambda: zlib.decompressobj(GZIP_WINDOW)
    if path.lower().endswith(".xz"):
        return lzma.LZMADecompressor
    try:
        import zstandard
    except ImportError as error:
        raise ConfigError(
            f"{path}: needs the package zstandard. Received: {error}. Run: "
            f"{pip_install('zstandard')}"
        ) from error
    return zstandard.ZstdDecompressor().decompressobj


class _Decompressed(io.RawIOBase):
    """The bytes of all streams of a file; `open_stream` makes a decompressor as zlib's."""

    def __init__(self, file, path, open_stream):
        self._file = file
        self._path = path
        self._open_stream = open_stream
        self._stream: Any = None  # None between two streams
        self._streams = 0
        self._left = b""  # read after the end of a stream
        self._ready = memoryview(b"")

    def readable(self):
        return True

    def readinto(self, buffer):
        while not self._ready:
            data = self._left or self._file.read(CHUNK_BYTES)
            if not data:
                self._check_end()
                return 0
            self._left = b""
            self._ready = memoryview(self._decompress(data))
        size = min(len(buffer), len(self._ready))
        buffer[:size], self._ready = self._ready[:size], self._ready[size:]
        return size

    def _decompress(self, data):
        if self._stream is None:
            if self._streams and self._path.lower().endswith(PADDED):
                data = data.lstrip(b"\0")
            if not data:
                return b""
            self._stream = self._open_stream()
            self._streams += 1
        try:
            text = self._stream.decompress(data)
        except Exception as error:  # zstandard's error type, without importing it for other files
            if not isinstance(error, KNOWN) and type(error).__name__ != "ZstdError":
                raise
            raise self._broken(str(error)) from error
        if self._stream.eof:
            self._left, self._stream = self._stream.unused_data, None
        return text

    def _check_end(self):
        if self._stream is not None:
            raise self._broken("an end within the compressed data")
        if not self._streams:
            raise self._broken("an empty file")

    def _broken(self, received):
        kind = self._path.rsplit(".", 1)[-1].lower()
        return DataError(
            f"{self._path}: must be a complete {kind} file. Received: {received}. Copy it again."
        )
