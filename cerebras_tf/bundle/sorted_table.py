"""Sorted tables of LevelDB: the container of a checkpoint's index.

Format: github.com/google/leveldb/blob/main/doc/table_format.md. A table has blocks of entries whose
    keys share prefixes, a block with their offsets, and a footer; each block has a checksum. Tables
    are read
and written whole, uncompressed, as TensorFlow writes them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

import numpy as np

from cerebras_tf.kernels.compiled_crc32c import crc32c, mask_crc

_MAGIC = 0xDB4775248B80FB57
_FOOTER_BYTES = 48
_UNCOMPRESSED = b"\x00"
_CHECKSUM_BYTES = 4
_BLOCK_BYTES = 1 << 18
_RESTART_EVERY = 16


def read_varint(content: bytes, at: int) -> tuple[int, int]:
    """(a number in base 128, least digit first, whose last byte is below 128; where it ends)."""
    value = shift = 0
    while True:
        byte = content[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if not byte and shift:
            raise ValueError(f"a number with a last digit of 0 at byte {at}")
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError(f"a number without an end at byte {at}")


def write_varint(value: int) -> bytes:
    """The inverse of read_varint."""
    digits = bytearray()
    while value >= 0x80:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    digits.append(value)
    return bytes(digits)


def read_table(table: bytes) -> Iterator[tuple[bytes, bytes]]:
    """(key, value) of every entry, in order of the keys.

    Raises:
        ValueError: it is damaged or of another format.
    """
    if len(table) < _FOOTER_BYTES:
        raise ValueError(f"{len(table)} bytes, of which the footer alone takes {_FOOTER_BYTES}")
    footer = table[-_FOOTER_BYTES:]
    if struct.unpack_from("<Q", footer, _FOOTER_BYTES - 8)[0] != _MAGIC:
        raise ValueError("a footer that is not that of a sorted table")
    start, at = read_varint(footer, 0)
    size, at = read_varint(footer, at)
    _block(table, start, size)  # of metadata: it is empty
    start, at = read_varint(footer, at)
    size, at = read_varint(footer, at)
    if any(footer[at : _FOOTER_BYTES - 8]):
        raise ValueError("a footer with content after its two places")
    for _, handle in _entries(_block(table, start, size)):
        start, at = read_varint(handle, 0)
        size, at = read_varint(handle, at)
        yield from _entries(_block(table, start, size))


def write_table(items: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The table of (key, value) pairs, which must be sorted by key."""
    table = bytearray()

    def add(block: _Block) -> bytes:
        content = block.content() + _UNCOMPRESSED
        handle = write_varint(len(table)) + write_varint(len(content) - 1)
        table.extend(content + struct.pack("<I", _checksum(content)))
        return handle

    blocks, block = _Block(), _Block()
    for key, value in items:
        if block.size > _BLOCK_BYTES:
            blocks.add(block.last, add(block))
            block = _Block()
        block.add(key, value)
    blocks.add(block.last, add(block))
    footer = add(_Block()) + add(blocks)
    table.extend(footer.ljust(_FOOTER_BYTES - 8, b"\x00") + struct.pack("<Q", _MAGIC))
    return bytes(table)


def _checksum(content: bytes) -> int:
    return mask_crc(crc32c(np.frombuffer(content, np.uint8)))


def _block(table: bytes, start: int, size: int) -> bytes:
    end = start + size + len(_UNCOMPRESSED)
    content, held = table[start:end], table[end : end + _CHECKSUM_BYTES]
    if len(held) < _CHECKSUM_BYTES:
        raise ValueError(f"a block of {size} bytes at byte {start}, beyond its end")
    if struct.unpack("<I", held)[0] != _checksum(content):
        raise ValueError(f"a block at byte {start} whose checksum differs")
    if content[size:] != _UNCOMPRESSED:
        raise ValueError(f"a block at byte {start} that is compressed")
    return content[:size]


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    (restarts,) = struct.unpack_from("<I", block, len(block) - 4)
    end = len(block) - 4 - 4 * restarts
    at, key = 0, b""
    while at < end:
        shared, at = read_varint(block, at)
        more, at = read_varint(block, at)
        size, at = read_varint(block, at)
        key = key[:shared] + block[at : at + more]
        at += more
        yield key, block[at : at + size]
        at += size


class _Block:
    """A block being built. Every few entries, the key is stored in full."""

    def __init__(self) -> None:
        self.last = b""
        self._content = bytearray()
        self._restarts = [0]
        self._count = 0

    @property
    def size(self) -> int:
        return len(self._content)

    def add(self, key: bytes, value: bytes) -> None:
        shared = 0
        if self._count % _RESTART_EVERY == 0:
            if self._count:
                self._restarts.append(len(self._content))
        else:
            most = min(len(key), len(self.last))
            while shared < most and key[shared] == self.last[shared]:
                shared += 1
        for number in (shared, len(key) - shared, len(value)):
            self._content += write_varint(number)
        self._content += key[shared:] + value
        self.last = key
        self._count += 1

    def content(self) -> bytes:
        numbers = [*self._restarts, len(self._restarts)]
        return bytes(self._content) + struct.pack(f"<{len(numbers)}I", *numbers)
