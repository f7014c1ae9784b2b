"""Writes scalars to a TensorBoard event file, without TensorFlow.

A file is a sequence of records: the size of an Event message, the message, and a masked CRC-32C of
each (tensorflow/core/lib/io/record_writer.h, tensorflow/core/util/event.proto).
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Optional

import numpy as np

from cerebras_tf.kernels.compiled_crc32c import crc32c, mask_crc

# Field numbers and wire types of protocol buffers: number << 3 | type.
_WALL_TIME, _STEP, _FILE_VERSION, _SUMMARY, _SESSION_LOG = 0x09, 0x10, 0x1A, 0x2A, 0x3A
_VALUE, _TAG, _SIMPLE_VALUE, _STATUS = 0x0A, 0x0A, 0x15, 0x08
_START = 1  # SessionLog.START


class EventFile:
    """The event file of a run; a Logger, see console.loggers. It is made with the first scalars."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._path: Optional[Path] = None

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Writes scalars by tag."""
        items = b"".join(
            _bytes(_VALUE, _bytes(_TAG, tag.encode()) + struct.pack("<Bf", _SIMPLE_VALUE, value))
            for tag, value in values.items()
        )
        self._write(_numbered(step) + _bytes(_SUMMARY, items))

    def restart(self, step: int) -> None:
        """Training continues with this step: TensorBoard drops later ones of a lost session."""
        self._write(_numbered(step) + _bytes(_SESSION_LOG, bytes([_STATUS, _START])))

    def close(self) -> None:
        """Everything is written already."""

    def _write(self, content: bytes) -> None:
        now = struct.pack("<Bd", _WALL_TIME, time.time())
        records = [now + content]
        if self._path is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}"
            self._path = self._folder / name
            records.insert(0, now + _bytes(_FILE_VERSION, b"brain.Event:2"))
        with open(self._path, "ab") as file:
            file.write(b"".join(map(_record, records)))


def _record(content: bytes) -> bytes:
    size = struct.pack("<Q", len(content))
    return size + _checksum(size) + content + _checksum(content)


def _checksum(content: bytes) -> bytes:
    return struct.pack("<I", mask_crc(crc32c(np.frombuffer(content, np.uint8))))


def _numbered(step: int) -> bytes:
    return bytes([_STEP]) + _varint(step)


def _bytes(key: int, content: bytes) -> bytes:
    return bytes([key]) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])
