"""What control groups allow, from files as Linux writes them."""

from __future__ import annotations

from cerebras_tf.runtime.capacity import allowed_bytes


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
