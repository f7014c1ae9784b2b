"""What could not be read gives its memory back, and the time that was waited for it counts."""

import numpy as np
import pytest

from cerebras_tf.errors import CapacityError, StoreError
from cerebras_tf.ir import TensorType, Variable
from cerebras_tf.memoryx.buffers import ALIGNMENT_BYTES, Buffers
from cerebras_tf.memoryx.disk import FileDisk
from cerebras_tf.memoryx.file_store import FileStore
from cerebras_tf.memoryx.record_file import Record, RecordFile
from cerebras_tf.memoryx.store import write
from cerebras_tf.memoryx.transfers import Transfers

PAGE = ALIGNMENT_BYTES
SPECS = [Variable(name, TensorType("float32", (PAGE // 4,)), True) for name in "ab"]


class Broken(RecordFile):
    def read(self, offset, buffers):
        raise OSError(5, "Input/output error")


@pytest.mark.parametrize("pages", [1, 2])  # in one page, the second of both finds no room
def test_buffers_of_a_read_that_fails_are_given_back(tmp_path, pages):
    buffers = Buffers(pages * PAGE)
    transfers = Transfers(buffers)
    file = Broken(tmp_path / "file.bin")
    records = [
        Record(spec, 0, i * PAGE, file=file, offset=i * PAGE) for i, spec in enumerate(SPECS)
    ]
    try:
        if pages == 1:
            buffers._is_closed = True  # who would wait for ever gets an error
        transfers.read(records)
        for record in records:
            with pytest.raises(CapacityError if pages == 1 else StoreError):
                record.reading.result()
        idle = sum(len(found) for found in buffers._idle.values())
        assert buffers.bytes == idle * PAGE, "memory is free or idle, and nobody has the rest"
    finally:
        transfers.close()
        file.close()


def test_time_waited_for_a_read_that_fails_is_counted(tmp_path, monkeypatch):
    store = FileStore(SPECS, FileDisk(str(tmp_path), PAGE))
    try:
        for spec in SPECS:
            write(store, spec.name, np.ones(PAGE // 4, np.float32))
        monkeypatch.setattr(RecordFile, "read", Broken.read)
        before = store.io_stats.stalled_s
        with pytest.raises(StoreError, match="written checkpoints are not affected"):
            store.acquire(["a"])
        assert store.io_stats.stalled_s > before
    finally:
        store.close()
