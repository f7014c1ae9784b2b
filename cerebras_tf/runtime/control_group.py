"""How much memory the control groups of Linux still allow this process: containers, Slurm, systemd.

Sources: Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst of the kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Optional

_ROOT = Path("/")


class _Version(NamedTuple):
    """Where a version of control groups says what: folder, files, keys of memory.stat."""

    folder: str
    limit: str
    used: str
    cached: tuple[str, str]


_V1 = _Version(
    "sys/fs/cgroup/memory",
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    ("total_inactive_file", "total_active_file"),
)
_V2 = _Version("sys/fs/cgroup", "memory.max", "memory.current", ("inactive_file", "active_file"))


def allowed_bytes(root: Path = _ROOT) -> Optional[int]:
    """Bytes that this process's control group, and those it lies in, still allow; None: no limit.

    Cached pages of files, which a group gives up when it needs memory, do not count as used.

    Args:
        root: of the file system that tells it.
    """
    found = [left for group in _groups(root) if (left := _left(*group)) is not None]
    return min(found, default=None)


def _groups(root: Path) -> Iterator[tuple[_Version, Path]]:
    """The groups with memory limits of this process, from the innermost out.

    In a container the path may be that of the host, where its own group is the root.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:  # no Linux
        return
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number != "0" and "memory" not in controllers.split(","):
            continue
        version = _V2 if number == "0" else _V1
        names = [name for name in path.split("/") if name]
        for depth in range(len(names), -1, -1):
            yield version, root.joinpath(version.folder, *names[:depth])


def _left(version: _Version, folder: Path) -> Optional[int]:
    """Bytes that a group still allows; None without a limit."""
    try:
        limit = (folder / version.limit).read_text(encoding="ascii").strip()
        used = int((folder / version.used).read_text(encoding="ascii"))
        stat = (folder / "memory.stat").read_text(encoding="ascii")
    except (OSError, ValueError):
        return None
    if not limit.isdigit():  # "max"
        return None
    counts = dict(line.split() for line in stat.splitlines())
    cached = sum(int(counts.get(key, 0)) for key in version.cached)
    return max(0, int(limit) - max(0, used - cached))
