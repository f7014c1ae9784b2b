"""`cerebras-tf info`: versions, cores, memory and kernels on this computer.

`cerebras-tf bench` measures.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any, Optional

from cerebras_tf.quantities import counted

PACKAGES = (
    "tensorflow-cpu",
    "tensorflow",
    "tensorflow-estimator",
    "tf_keras",
    "numpy",
    "numba",
    "mpi4py",
)


def package_versions() -> dict[str, str]:
    """Returns the version of each installed package that speed or numbers depend on."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def usable_cores() -> int:
    """Returns the cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_bytes() -> tuple[int, Optional[int]]:
    """Returns (total, available) bytes of main memory; None if unknown."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return total, int(line.split()[1]) * 1024
    return total, None


def describe_cache(folder: Optional[Path]) -> str:
    """Returns the folder of compiled kernels, its number of files and its bytes."""
    if folder is None:
        return "none (no writable folder; every process compiles kernels again)"
    files = [path for path in folder.rglob("*") if path.is_file()] if folder.exists() else []
    size_mb = sum(path.stat().st_size for path in files) / 1e6
    return f"{folder} ({counted(len(files), 'file')}, {size_mb:.1f} MB)"


def kernel_cache_folder() -> Optional[Path]:
    """Returns the folder of compiled kernels, or None if there is none."""
    try:
        from cerebras_tf.kernels.compiled_jit import CACHE_FOLDER
    except ModuleNotFoundError as error:  # kernels run in their plain form without Numba
        if error.name != "numba":
            raise
        return None
    return CACHE_FOLDER


def collect() -> dict[str, str]:
    """Returns the lines of the report, by label."""
    from cerebras_tf.kernels.blas import library_name

    total, available = memory_bytes()
    free = "" if available is None else f", {available / 2**30:.1f} GiB available"
    rows = {"python": platform.python_version(), **package_versions()}
    rows["machine"] = f"{platform.system()} {platform.machine()}"
    rows["cores"] = str(usable_cores())
    rows["memory"] = f"{total / 2**30:.1f} GiB{free}"
    rows["BLAS"] = library_name()
    rows["kernel cache"] = describe_cache(kernel_cache_folder())
    return rows


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds nothing: the command has no arguments."""


def run(args: Any) -> None:
    """Prints the report, one aligned line per fact."""
    rows = collect()
    width = max(map(len, rows))
    for label, text in rows.items():
        print(f"{label:<{width}}  {text}")
