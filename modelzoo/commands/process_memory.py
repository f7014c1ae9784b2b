"""What the kernel says of the memory of this process."""

from __future__ import annotations

from pathlib import Path


def status_bytes(name: str) -> int:
    """A line of /proc/self/status in bytes, which the kernel gives in KiB; see proc(5)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) * 1024
    raise OSError(f"/proc/self/status has no {name}: this kernel does not say what is asked for")
