"""The measurement of a disk's speed leaves nothing in its folder, not even while it runs."""

from __future__ import annotations

import errno
import os

import pytest

from cerebras_tf.errors import StoreError
from cerebras_tf.memoryx import disk_speed
from cerebras_tf.memoryx.record_file import RecordFile


def test_nothing_stands_in_the_folder_while_it_is_measured(tmp_path, monkeypatch):
    seen = []
    write = RecordFile.write

    def looking(self, *args):
        seen.append(os.listdir(tmp_path))
        write(self, *args)

    monkeypatch.setattr(RecordFile, "write", looking)
    read_speed, write_speed = disk_speed.measured_disk_speeds(str(tmp_path))
    assert read_speed > 0 and write_speed > 0
    assert seen == [[]]
    assert os.listdir(tmp_path) == []


def test_nothing_is_left_where_the_file_cannot_be_made(tmp_path, monkeypatch):
    def full(path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(disk_speed, "RecordFile", full)
    with pytest.raises(OSError, match="No space left"):
        disk_speed.measured_disk_speeds(str(tmp_path))
    assert os.listdir(tmp_path) == []


def test_what_the_caller_gives_back_counts_as_free(tmp_path, monkeypatch):
    monkeypatch.setattr(disk_speed, "free_bytes", lambda folder: 10)
    with disk_speed.counting_as_free(5):
        disk_speed.require_free(str(tmp_path), 15, "weights")
        with pytest.raises(StoreError, match="weights must fit on it"):
            disk_speed.require_free(str(tmp_path), 16, "weights")
    with pytest.raises(StoreError, match="weights must fit on it"):
        disk_speed.require_free(str(tmp_path), 11, "weights")
