"""Writes the lock files: every version, transitive ones too, for each Python supported.

    python scripts/update_lock.py python3.10 python3.11

Each interpreter resolves `.[test]` with pip's dry run for requirements.lock, and
`.[test,peers,lm-eval]` within those versions for what peers.lock holds besides: PyTorch,
Transformers and lm-eval, which only tests with other people's implementations need. A line that
does not hold on all interpreters gets a marker. It does not choose versions of direct requirements:
setup.py does.
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
        dry = ["--quiet", "--dry-run", "--ignore-installed", "--report", str(report), *options]
        subprocess.run([python, "-m", "pip", "install", *dry, f"{ROOT}[{extras}]"], check=True)
        resolved = json.loads(report.read_text(encoding="utf-8"))
    version = ".".join(resolved["environment"]["python_full_version"].split(".")[:2])
    return version, [item["metadata"] for item in resolved["install"]]


def platform_lines(project: dict[str, Any]) -> list[str]:
    """Returns the project's own requirements that hold on some platforms only, as written."""
    return [line for line in project["requires_dist"] if "platform_" in line]


def lock_lines(resolved: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Merges resolutions, {python version: metadata of packages}, into the lines of a lock."""
    pythons_of: dict[tuple[str, str], list[str]] = {}
    lines: set[str] = set()
    for python, packages in resolved.items():
        for metadata in packages:
            if metadata["name"] == "cerebras_tf":
                lines.update(platform_lines(metadata))
            else:
                # A local version, as of a build for one kind of machine, stands for all builds.
                version = metadata["version"].partition("+")[0]
                pin = (normalized(metadata["name"]), version)
                pythons_of.setdefault(pin, []).append(python)
    by_platform = {normalized(line.split("=")[0]) for line in lines}
    for (name, version), pythons in pythons_of.items():
        if name in by_platform:
            continue
        holds = " or ".join(f'python_version == "{python}"' for python in pythons)
        marker = "" if len(pythons) == len(resolved) else f"; {holds}"
        lines.add(f"{name}=={version}{marker}")
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
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
