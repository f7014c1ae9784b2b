"""Checks before the first step whether a model fits into memory."""

from __future__ import annotations

import ctypes
import os
import socket
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Optional

from cerebras_tf.errors import BatchCapacityError
from cerebras_tf.ir.program import Program
from cerebras_tf.swarmx.swarm import Swarm

_ROOT = Path("/")


class _Version(NamedTuple):
    """Files of a version of control groups: folder, names, keys of memory.stat."""

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
    """
    found = [left for group in _groups(root) if (left := _free_in_group(*group)) is not None]
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


def _free_in_group(version: _Version, folder: Path) -> Optional[int]:
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


# Share of free memory that is left for TensorFlow and the input pipeline.
_MARGIN = 0.1


def available_bytes() -> int:
    """Bytes of memory that a process may still take, by the kernel and its control group."""
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    available = int(line.split()[1]) * 1024
    except OSError:  # no Linux: physical memory is the best that is known
        pass
    allowed = allowed_bytes()
    return available if allowed is None else min(available, allowed)


def memory_share(swarm: Swarm) -> Optional[int]:
    """Bytes that each wafer of a job may take; None for one wafer, which takes what is free.

    The wafers on one computer share its free memory. All get the smallest share, so that all
    compile the same program. All call it together.
    """
    if swarm.size == 1:
        return None
    free: dict[str, list[int]] = defaultdict(list)
    for host, there in swarm.objects((socket.gethostname(), available_bytes())):
        free[host].append(there)
    return min(min(found) // len(found) for found in free.values())


_M_ARENA_MAX = -8  # malloc.h of glibc


def trim_heap() -> None:
    """Returns freed memory to the system (malloc_trim of glibc).

    Building and compiling a graph frees hundreds of megabytes, which glibc keeps otherwise. With
    other C libraries it does nothing.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # malloc_trim(3) of glibc
    if trim is not None:
        trim(0)


def use_one_heap() -> None:
    """Makes threads that start from now on allocate from one heap.

    By default glibc uses up to eight heaps per core, and memory that is free in one of them cannot
    be used by another. Steps allocate hardly any memory, so threads do not wait for the heap.
    """
    limit = getattr(ctypes.CDLL(None), "mallopt", None)  # mallopt(3) of glibc
    if limit is not None:
        limit(_M_ARENA_MAX, 1)


def activation_bytes(program: Program) -> int:
    """Bytes that a step takes besides variables: activations and scratch memory."""
    return program.arena_bytes + program.scratch_bytes


def activation_limit(state_bytes: int, held_bytes: int = 0, share: Optional[int] = None) -> int:
    """Bytes that activations and scratch memory may take: 90 % of what is free."""
    return int((1 - _MARGIN) * (_free_bytes(held_bytes, share) - state_bytes))


def _free_bytes(held_bytes: int, share: Optional[int]) -> int:
    return available_bytes() + held_bytes if share is None else share


def capacity_error(
    program: Program,
    state_bytes: int,
    held_bytes: int = 0,
    share: Optional[int] = None,
    where: str = " for each of its wafers (num_csx)",
) -> Optional[BatchCapacityError]:
    """The error if variables, activations and scratch memory do not fit; else None.

    Args:
        program: gives the activation and the scratch memory.
        state_bytes: bytes of weights and optimizer state in memory, see Store.total_resident_bytes.
        held_bytes: bytes of these that are already allocated.
        share: bytes that one of several wafers may take of its computer, see memory_share; None
            for one wafer, which may take all.
        where: what the share is, for the error.
    """
    activations = activation_bytes(program)
    needed = state_bytes + activations
    free = _free_bytes(held_bytes, share)
    if needed <= free:
        return None
    largest = max(program.layers, key=lambda layer: layer.weight_bytes, default=None)
    hint = ""
    if largest is not None:
        hint = f" Largest layer: '{largest.name}', {largest.weight_bytes / 1e9:.2f} GB of weights."
    return BatchCapacityError(
        f"this model needs {needed / 1e9:.1f} GB of memory: {state_bytes / 1e9:.1f} GB of weights "
        f"and optimizer state, {activations / 1e9:.1f} GB of activations and gradients. "
        f"Received: {free / 1e9:.1f} GB free{'' if share is None else where}, "
        f"{(needed - free) / 1e9:.1f} GB too little.{hint} Lower batch_size or "
        "max_sequence_length, choose a smaller model, or use a computer with more memory.",
        needed,
        free,
        state_bytes,
    )
