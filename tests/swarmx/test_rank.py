"""What a process of a job does before its command begins."""

from __future__ import annotations

import mmap

from cerebras_tf.swarmx.rank import remove_abandoned_segments


def test_shared_memory_that_nobody_has_any_more_is_removed(tmp_path):
    names = ("mpich_shm_a", "mpich_shm_b", "another's")
    abandoned, used, other = (tmp_path / name for name in names)
    for path in (abandoned, used, other):
        path.write_bytes(bytes(mmap.PAGESIZE))
    with open(used, "r+b") as file, mmap.mmap(file.fileno(), mmap.PAGESIZE):
        remove_abandoned_segments(tmp_path)
    assert set(tmp_path.iterdir()) == {used, other}
    remove_abandoned_segments(tmp_path)
    assert list(tmp_path.iterdir()) == [other]
