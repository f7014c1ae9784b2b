"""Checks that a model too large for this machine is refused with what it needs."""

from __future__ import annotations

import os
from pathlib import Path

from cerebras_tf.ir.program import Layer, Program
from cerebras_tf.runtime.capacity import allowed_bytes, available_bytes, capacity_error, trim_heap


def program(arena_bytes):
    layers = [Layer("small", ("a",), 1), Layer("decoder/ffn", ("b",), 7 * 10**9)]
    return Program(arena_bytes=arena_bytes, layers=layers)


def test_available_memory_is_positive_and_at_most_what_the_machine_has():
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < available_bytes() <= physical


def test_a_model_that_fits_passes():
    assert capacity_error(program(1000), state_bytes=1000) is None


def test_a_model_that_does_not_fit_is_refused_with_numbers_and_remedy():
    message = str(capacity_error(program(2 * 10**15), state_bytes=10**15))
    assert message.startswith("this model needs 3000000.0 GB of memory: 1000000.0 GB of weights")
    assert "2000000.0 GB of activations" in message
    assert "Largest layer: 'decoder/ffn', 7.00 GB of weights." in message
    assert "Lower batch_size" in message


def test_memory_the_model_holds_already_counts_as_free():
    needed = available_bytes() + 10**12
    assert capacity_error(program(0), needed)
    assert not capacity_error(program(0), needed, held_bytes=2 * 10**12)


def test_a_wafer_takes_its_share():
    assert "10.0 GB free for each of its wafers" in str(
        capacity_error(program(0), 10**11, 0, 10**10)
    )
    assert not capacity_error(program(0), 10**9, 0, 10**10)


def test_freed_memory_goes_back_to_the_system():
    """Small blocks, as a graph's, which glibc keeps when they are freed below one still in use."""
    blocks = [bytes(1000) for _ in range(100_000)]
    last = bytes(1000)
    del blocks
    before = resident_bytes()
    trim_heap()
    assert resident_bytes() <= before - 50_000_000
    assert len(last) == 1000


def resident_bytes():
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def write(root, membership, **groups):
    """Makes a root; groups by folder below sys/fs/cgroup: (limit, used, cached)."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(membership)
    for name, (limit, used, cached) in groups.items():
        old = name.startswith("memory")
        folder = root / "sys/fs/cgroup" / name.replace("__", "/").removeprefix("top")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ("memory.limit_in_bytes" if old else "memory.max")).write_text(f"{limit}\n")
        (folder / ("memory.usage_in_bytes" if old else "memory.current")).write_text(f"{used}\n")
        prefix = "total_" if old else ""
        stat = f"anon 7\n{prefix}inactive_file {cached}\n{prefix}active_file 1\n"
        (folder / "memory.stat").write_text(stat)
    return root


def test_the_tightest_of_the_groups_around_the_process_counts(tmp_path):
    groups = {"job": ("max", 900, 0), "job__step": (5000, 901, 300), "top": (3000, 1000, 99)}
    assert allowed_bytes(write(tmp_path, "0::/job/step/task\n", **groups)) == 3000 - 900


def test_the_first_version_is_read_by_its_own_names(tmp_path):
    membership = "9:name=systemd:/\n4:cpuset,memory:/job\n0::/\n"
    root = write(tmp_path, membership, memory__job=(2000, 1501, 500))
    assert allowed_bytes(root) == 1000


def test_a_container_sees_its_own_group_as_the_root(tmp_path):
    root = write(tmp_path, "0::/system.slice/docker-1\n", top=(100, 80, 0))
    assert allowed_bytes(root) == 21
    (root / "sys/fs/cgroup/memory.current").write_text("200\n")
    assert allowed_bytes(root) == 0


def test_no_limit_is_told_from_none_left(tmp_path):
    assert allowed_bytes(write(tmp_path, "0::/\n", top=("max", 1, 0))) is None
    assert allowed_bytes(tmp_path / "elsewhere") is None
