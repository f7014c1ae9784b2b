"""Writes scripts/requirements.lock: every version, transitive ones too, for each Python supported.

    python scripts/update_lock.py python3.9 python3.10 python3.11

Each interpreter resolves `.[test]` with pip's dry run; a line that does not hold on all of them
gets a marker. It does not choose versions of direct requirements: setup.py does.
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
HEADER = """\
# Exact versions of all packages of the scripts' environment. Written by scripts/update_lock.py
# from setup.py; do not edit.
"""


def normalized(name: str) -> str:
    """Returns a distribution's name in the spelling that compares equal (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def resolve(interpreter: str) -> tuple[str, list[dict[str, Any]]]:
    """Returns the interpreter's `major.minor` and the metadata of all that `.[test]` installs.

    Raises:
      subprocess.CalledProcessError: pip found no set of versions; its output is on stderr.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        subprocess.run([interpreter, "-m", "venv", f"{folder}/venv"], check=True)
        python = f"{folder}/venv/bin/python"
        options = ["--quiet", "--dry-run", "--ignore-installed", "--report", str(report)]
        subprocess.run([python, "-m", "pip", "install", *options, f"{ROOT}[test]"], check=True)
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
                pin = (normalized(metadata["name"]), metadata["version"])
                pythons_of.setdefault(pin, []).append(python)
    by_platform = {normalized(line.split("=")[0]) for line in lines}
    for (name, version), pythons in pythons_of.items():
        if name in by_platform:
            continue
        holds = " or ".join(f'python_version == "{python}"' for python in pythons)
        marker = "" if len(pythons) == len(resolved) else f"; {holds}"
        lines.add(f"{name}=={version}{marker}")
    return sorted(lines)


def main(interpreters: list[str]) -> int:
    """Resolves on every interpreter and writes the lock file; returns the exit status."""
    if not interpreters:
        print(__doc__, file=sys.stderr)
        return 2
    resolved = dict(resolve(interpreter) for interpreter in interpreters)
    LOCK.write_text(HEADER + "\n".join(lock_lines(resolved)) + "\n", encoding="utf-8")
    print(f"{LOCK}: {len(lock_lines(resolved))} lines for Python {', '.join(sorted(resolved))}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
