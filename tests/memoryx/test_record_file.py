"""Files of records on file systems that lack direct input and output, or preallocation."""

import errno
import os
import threading

import numpy as np
import pytest

from cerebras_tf.ir import TensorType, Variable
from cerebras_tf.memoryx import record_file
from cerebras_tf.memoryx.buffers import ALIGNMENT_BYTES, Buffers
from cerebras_tf.memoryx.disk import FileDisk
from cerebras_tf.memoryx.disk_speed import free_bytes, measured_disk_speeds
from cerebras_tf.memoryx.file_store import FileStore
from cerebras_tf.memoryx.record_file import RecordFile
from cerebras_tf.memoryx.store import write
from tests.machines import content_of

PAGE = ALIGNMENT_BYTES
DIRECT = getattr(os, "O_DIRECT", 0)


class PlainSystem:
    """Stands for `os` on a file system without some calls, and notes what it is asked."""

    def __init__(self, has_direct=True, has_fallocate=True):
        self.has_direct, self.has_fallocate = has_direct, has_fallocate
        self.dropped = 0

    def __getattr__(self, name):
        return getattr(os, name)

    def open(self, path, flags, mode=0o777):
        if flags & DIRECT and not self.has_direct:
            if flags & os.O_CREAT:  # Linux makes the file before it refuses
                os.close(os.open(path, flags & ~DIRECT, mode))
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return os.open(path, flags & ~DIRECT, mode)

    def posix_fallocate(self, *arguments):
        if not self.has_fallocate:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        os.posix_fallocate(*arguments)

    def posix_fadvise(self, descriptor, offset, size, advice):
        self.dropped += size if advice == os.POSIX_FADV_DONTNEED else 0
        os.posix_fadvise(descriptor, offset, size, advice)


@pytest.mark.parametrize("has_fallocate", [False, True])
@pytest.mark.parametrize("has_direct", [False, True])
def test_variables_come_back_from_any_file_system(tmp_path, monkeypatch, has_direct, has_fallocate):
    system = PlainSystem(has_direct, has_fallocate)
    monkeypatch.setattr(record_file, "os", system)
    names = "abcdef"
    specs = [Variable(name, TensorType("float32", (PAGE // 4 - 3,)), True) for name in names]
    store = FileStore(specs, FileDisk(str(tmp_path), 2 * PAGE))
    try:
        # Every other one is zero: nothing is written of it, and it is there all the same.
        values = {n: np.full(PAGE // 4 - 3, i % 2 * i, np.float32) for i, n in enumerate(names)}
        for _ in range(2):
            for name, content in values.items():
                write(store, name, content)
            for name, content in values.items():
                np.testing.assert_array_equal(content_of(store, name), content)
            values = {name: 7 - content for name, content in values.items()}
    finally:
        store.close()
    assert (system.dropped > 0) == (not has_direct), "what the page cache holds is dropped"


def test_room_that_was_not_written_reads_zero(tmp_path, monkeypatch):
    monkeypatch.setattr(record_file, "os", PlainSystem(has_fallocate=False))
    file = RecordFile(tmp_path / "file.bin")
    try:
        file.allocate(PAGE, 2 * PAGE)
        file.allocate(0, PAGE)
        buffer = Buffers(3 * PAGE).take(3 * PAGE)
        buffer[:] = 1
        assert file.read(0, [buffer]) == 3 * PAGE
        assert not buffer.any()
    finally:
        file.close()


def test_two_threads_that_take_room_at_once_cut_nothing_off(tmp_path, monkeypatch):
    system = PlainSystem(has_fallocate=False)
    monkeypatch.setattr(record_file, "os", system)
    file = RecordFile(tmp_path / "file.bin")
    far = threading.Thread(target=file.allocate, args=(2 * PAGE, PAGE))

    def fstat(descriptor):
        found = os.fstat(descriptor)
        if threading.current_thread() is not far:
            far.start()
            far.join(timeout=0.2)  # it may end before this one has grown the file
        return found

    system.fstat = fstat
    try:
        file.allocate(0, PAGE)
        far.join()
        assert (tmp_path / "file.bin").stat().st_size == 3 * PAGE
    finally:
        file.close()


def test_speed_and_room_of_a_folder_that_is_not_there_yet(tmp_path):
    folder = str(tmp_path / "a" / "b")
    assert free_bytes(folder) > 0
    assert all(speed > 0 for speed in measured_disk_speeds(folder))
    assert not list(tmp_path.iterdir())
