"""Writes the lock files: every version, transitive ones too, for each Python supported.

    python scripts/update_lock.py python3.10 python3.11 python3.12 python3.13

Each interpreter resolves `.[test]` with pip's dry run for requirements.lock, and
`.[test,peers,lm-eval]` within those versions for what peers.lock holds besides: PyTorch,
Transformers and lm-eval, which only tests with other people's implementations need. mpi.lock holds
what several wafers need besides, and docs.lock what the documentation needs. A line that
does not hold on all interpreters gets a marker. Of the ranges in setup.py pip takes the newest that
fit together. Run it on x86-64 Linux.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "scripts" / "requirements.lock"
PEERS = ROOT / "scripts" / "peers.lock"
MPI = ROOT / "scripts" / "mpi.lock"
DOCS = ROOT / "scripts" / "docs.lock"
ON_X86_LINUX = 'platform_system == "Linux" and platform_machine == "x86_64"'
ELSEWHERE = 'platform_system != "Linux" or platform_machine != "x86_64"'
# On x86-64 Linux the build for processors alone is locked, of half the size.
TENSORFLOW, TENSORFLOW_CPU = "tensorflow", "tensorflow-cpu"
X86_LINUX_ONLY = ("scipy-openblas32",)  # as in setup.py
# What PyTorch's builds for GPUs bring, each build its own exact versions.
OF_GPU_BUILDS = ("cuda-", "nvidia-", "triton=")
HEADER = """\
# Exact versions of all packages of the scripts' environment. Written by scripts/update_lock.py
# from setup.py; do not edit.
"""
PEERS_HEADER = """\
# Exact versions of what tests against independent implementations need besides requirements.lock.
# Written by scripts/update_lock.py from setup.py; do not edit.
"""
MPI_HEADER = """\
# Exact versions of what several wafers need besides requirements.lock: MPI. Written by
# scripts/update_lock.py from setup.py; do not edit.
"""
DOCS_HEADER = """\
# Exact versions of what the documentation needs besides requirements.lock: Sphinx, MyST, furo.
# Written by scripts/update_lock.py from setup.py; do not edit.
"""


def normalized(name: str) -> str:
    """Returns a distribution's name in the spelling that compares equal (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def resolve(interpreter: str, extras: str, *options: str) -> tuple[str, list[dict[str, Any]]]:
    """Returns the interpreter's `major.minor` and the metadata of all that `.[extras]` installs.

    Args:
      interpreter: command of a Python.
      extras: names of extras, with commas.
      *options: more options of pip.

    Raises:
      subprocess.CalledProcessError: pip found no set of versions; its output is on stderr.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        subprocess.run([interpreter, "-m", "venv", f"{folder}/venv"], check=True)
        python = f"{folder}/venv/bin/python"
        # Newer releases of pip read the metadata of a wheel without the wheel.
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--upgrade", "pip"], check=True)
        dry = ["--quiet", "--dry-run", "--ignore-installed", "--report", str(report), *options]
        command = [python, "-m", "pip", "install", *dry, f"{ROOT}[{extras}]"]
        subprocess.run(command, check=True)
        resolved = json.loads(report.read_text(encoding="utf-8"))
        asked = [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        version = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
    return version, [item["metadata"] for item in resolved["install"]]


def platforms_of(name: str) -> list[tuple[str, str]]:
    """Returns the names under which a package is locked, each with a marker of platforms or ""."""
    if name in (TENSORFLOW, TENSORFLOW_CPU):
        return [(TENSORFLOW_CPU, ON_X86_LINUX), (TENSORFLOW, ELSEWHERE)]
    return [(name, ON_X86_LINUX if name in X86_LINUX_ONLY else "")]


def lock_lines(resolved: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Merges resolutions, {python version: metadata of packages}, into the lines of a lock."""
    pythons_of: dict[tuple[str, str, str], list[str]] = {}
    for python, packages in resolved.items():
        for metadata in packages:
            if metadata["name"] != "cerebras_tf":
                # A local version, as of a build for one kind of machine, stands for all builds.
                version = metadata["version"].partition("+")[0]
                for name, platform in platforms_of(normalized(metadata["name"])):
                    pythons_of.setdefault((name, version, platform), []).append(python)
    lines = []
    for (name, version, platform), pythons in pythons_of.items():
        markers = [platform] if platform else []
        if len(pythons) < len(resolved):
            markers.append(" or ".join(f'python_version == "{python}"' for python in pythons))
        text = markers[0] if len(markers) == 1 else " and ".join(f"({each})" for each in markers)
        lines.append(f"{name}=={version}{'; ' if markers else ''}{text}")
    return sorted(lines)


def write(path: Path, header: str, lines: list[str]) -> None:
    """Writes a lock file and says so."""
    path.write_text(header + "\n".join(lines) + "\n", encoding="utf-8")
    print(f"{path}: {len(lines)} lines")


def main(interpreters: list[str]) -> int:
    """Resolves on every interpreter and writes the lock files; returns the exit status."""
    if not interpreters:
        print(__doc__, file=sys.stderr)
        return 2
    own = lock_lines(dict(resolve(interpreter, "test") for interpreter in interpreters))
    write(LOCK, HEADER, own)
    within = ("--constraint", str(LOCK))
    both = lock_lines(
        dict(resolve(python, "test,peers,lm-eval", *within) for python in interpreters)
    )
    besides = [line for line in both if line not in own and not line.startswith(OF_GPU_BUILDS)]
    write(PEERS, PEERS_HEADER, besides)
    mpi = lock_lines(dict(resolve(python, "test,mpi", *within) for python in interpreters))
    write(MPI, MPI_HEADER, [line for line in mpi if line not in own])
    docs = lock_lines(dict(resolve(python, "test,docs", *within) for python in interpreters))
    write(DOCS, DOCS_HEADER, [line for line in docs if line not in own])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
