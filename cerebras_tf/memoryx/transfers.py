"""The threads that read records from files and write them."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple, Optional

import numpy as np

from cerebras_tf.errors import CheckpointError, StoreError
from cerebras_tf.ir import Array
from cerebras_tf.kernels.compiled_crc32c import crc32c
from cerebras_tf.kernels.compiled_reduction import all_finite
from cerebras_tf.kernels.timeline import spanned
from cerebras_tf.memoryx.buffers import Buffers
from cerebras_tf.memoryx.record_file import Record, RecordFile
from cerebras_tf.memoryx.store import IoStats

_READERS = 2
_WRITERS = 2
# Part of errors of the disk: there may be no checkpoint, or many.
UNTOUCHED = "written checkpoints are not affected"
# Adjacent records of a file are moved together up to this size; threads share larger runs.
_RUN_BYTES = 1 << 26


class _Move(NamedTuple):
    """A transfer of a record, with the record's place when it was requested."""

    record: Record
    file: RecordFile
    offset: int
    before: Optional[Future[None]]  # a write that must end first
    done: Future  # type: ignore[type-arg]
    buffer: Optional[Array] = None
    keep: bool = False


class Transfers:
    """Threads that read and write records.

    Args:
        buffers: memory for records that are read; written ones return theirs.

    Attributes:
        io_stats: what was moved.
    """

    def __init__(self, buffers: Buffers) -> None:
        self.io_stats = IoStats()
        self._buffers = buffers
        self._failure: Optional[BaseException] = None
        self._readers = ThreadPoolExecutor(_READERS, "cerebras_tf-read")
        self._writers = ThreadPoolExecutor(_WRITERS, "cerebras_tf-write")

    def raise_failure(self) -> None:
        """Raises StoreError if writing failed; training must then stop."""
        if self._failure is not None:
            raise self._failure

    def read(self, records: Sequence[Record]) -> None:
        """Starts to read records; each gets a `reading`."""
        moves = []
        for record in records:
            assert record.file is not None
            record.reading = Future()
            self.io_stats.bytes_read += record.size
            moves.append(_Move(record, record.file, record.offset, record.writing, record.reading))
        for run in _runs(moves):
            self._readers.submit(self._read, run)

    def write(self, records: Sequence[Record], keep: bool) -> None:
        """Starts to write records; each gets a `writing`.

        Args:
            records: records with a buffer and a file.
            keep: whether they keep their buffers, which must not change until they are written.
        """
        moves = []
        for record in records:
            assert record.file is not None
            before, record.writing = record.writing, Future()
            self.io_stats.bytes_written += record.size
            place = record.file, record.offset, before, record.writing
            moves.append(_Move(record, *place, record.buffer, keep))
            if not keep:
                record.buffer = None
        for run in _runs(moves):
            self._writers.submit(self._write, run)

    def finish(self, records: Iterable[Record]) -> None:
        """Waits until records are written; raises StoreError if writing failed."""
        for record in records:
            if record.writing is not None:
                record.writing.exception()
                record.writing = None
        self.raise_failure()

    def close(self) -> None:
        """Ends the threads."""
        self._readers.shutdown(cancel_futures=True)
        self._writers.shutdown(cancel_futures=True)

    def _read(self, run: Sequence[_Move]) -> None:
        with spanned("read", run[0].record.spec.name):
            self._read_all(run)

    def _read_all(self, run: Sequence[_Move]) -> None:
        buffers: list[Array] = []
        try:
            for move in run:
                if move.before is not None:
                    move.before.result()
            self.raise_failure()  # the file may be incomplete
            for move in run:
                buffers.append(self._buffers.take(move.record.size))
            count = run[0].file.read(run[0].offset, buffers)
            for move in run:
                _check(move, buffers[0], count)
                count -= buffers[0].nbytes
                move.done.set_result(buffers.pop(0))
        except BaseException as error:  # raised in the threads that wait
            for buffer in buffers:
                self._buffers.give(buffer)
            if isinstance(error, OSError) and not isinstance(error, StoreError):
                error = _store_error("read", run[0], error)
            for move in run:
                if not move.done.done():
                    move.done.set_exception(error)

    def _write(self, run: Sequence[_Move]) -> None:
        with spanned("write", run[0].record.spec.name):
            self._write_all(run)

    def _write_all(self, run: Sequence[_Move]) -> None:
        try:
            for is_zero, part in itertools.groupby(run, self._prepare):
                moves = list(part)
                if not is_zero:
                    buffers = [move.buffer for move in moves if move.buffer is not None]
                    moves[0].file.write(moves[0].offset, buffers)
        except BaseException as error:  # raised by the next acquisition
            if isinstance(error, OSError):
                error = _store_error("written", run[0], error)
            self._failure = error
        for move in run:
            if not move.keep and move.buffer is not None:
                self._buffers.give(move.buffer)
            move.done.set_result(None)

    @staticmethod
    def _prepare(move: _Move) -> bool:
        """Allocates space and computes the checksum; returns whether nothing need be written.

        New space reads as zeros, so initial optimizer state of zeros is not written.
        """
        record, buffer = move.record, move.buffer
        if move.before is not None:
            move.before.result()
        assert buffer is not None
        is_new, record.is_unallocated = record.is_unallocated, False
        if is_new:
            move.file.allocate(move.offset, buffer.nbytes)
        if not record.lives_within_step:
            type = record.spec.type
            content = record.content_of(buffer)
            record.checksum = crc32c(content)
            if record.spec.trainable:
                record.is_finite = all_finite(content, type.dtype)
        return is_new and not buffer.view(np.uint64).any()


def _runs(moves: Sequence[_Move]) -> Iterator[list[_Move]]:
    """Groups of adjacent records of a file, in order of offset."""
    run: list[_Move] = []
    end = size = 0
    for move in sorted(moves, key=lambda move: (str(move.file.path), move.offset)):
        follows = bool(run) and move.file is run[0].file and move.offset == end
        if run and not (follows and size < _RUN_BYTES):
            yield run
            run, size = [], 0
        run.append(move)
        size += move.record.size
        end = move.offset + move.record.size
    if run:
        yield run


def _check(move: _Move, buffer: Array, count: int) -> None:
    """Raises CheckpointError if a record is incomplete or its checksum differs."""
    record, size = move.record, move.record.spec.type.max_bytes
    content, count, found = record.content_of(buffer), count - record.skipped, ""
    if count < size:
        found = f"{max(count, 0)} of {size} bytes"
    elif record.is_unchecked:
        if crc32c(content) != record.checksum:
            found = "a checksum that differs"
        elif record.spec.trainable:
            record.is_finite = all_finite(content, record.spec.type.dtype)
    if found:
        source, path = move.file.source, str(move.file.path)
        advice = f"Start again; {UNTOUCHED}."
        if source is not None:
            path, advice = source.path, source.advice_on_damage()
        elif move.file.is_frozen:
            advice = "Start again; loading a checkpoint that shares it raises an error with advice."
        raise CheckpointError(
            f"{path}: the content of variable {move.record.spec.name} must be undamaged. Received: "
            f"{found}. {advice}"
        )


def _store_error(what: str, move: _Move, error: OSError) -> StoreError:
    advice = f"Check the disk; {UNTOUCHED}."
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        advice = f"Free disk space, then start again; {UNTOUCHED}."
    return StoreError(
        f"memoryx_dir: {move.file.path} must be {what}, for variable {move.record.spec.name}. "
        f"Received: {error.strerror}. {advice}"
    )
