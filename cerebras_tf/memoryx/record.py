"""A variable on its way between memory and files."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Optional

from cerebras_tf.ir import Array, Variable
from cerebras_tf.memoryx.buffers import padded
from cerebras_tf.memoryx.record_file import RecordFile


@dataclass(eq=False)
class Record:
    """A variable, where its content lies, and what goes on with it.

    Attributes:
        spec: what it is.
        number: which variables it shares files with.
        home: bytes from the start of these files.
        lives_within_step: whether it is in no checkpoint, and ends when it is read.
        file: where its content lies; None where it has none there.
        offset: of its first byte there.
        needs_room: nothing was written there yet.
        checksum: CRC-32C of its content there.
        is_unchecked: its content was not compared with the checksum since this process started.
        is_finite: its content there holds neither NaN nor infinity, as far as it was looked at.
        buffer: its content in memory; None where it is not here.
        reading: gives the buffer once it was read.
        writing: done once it was written.
        users: how many hold it.
        has_value: whether it has a value.
        is_dirty: the buffer is newer than the file.
        is_blank: the buffer was never filled.
    """

    spec: Variable
    number: int
    home: int
    lives_within_step: bool = False
    file: Optional[RecordFile] = None
    offset: int = 0
    needs_room: bool = False
    checksum: Optional[int] = None
    is_unchecked: bool = False
    is_finite: bool = True
    buffer: Optional[Array] = None
    reading: Optional[Future[Array]] = None
    writing: Optional[Future[None]] = None
    users: int = 0
    has_value: bool = False
    is_dirty: bool = False
    is_blank: bool = False

    @property
    def size(self) -> int:
        """Bytes that it takes in memory and in files."""
        return padded(self.spec.type.most_bytes)

    @property
    def is_here(self) -> bool:
        """Whether it is in memory, or on its way there."""
        return self.buffer is not None or self.reading is not None
