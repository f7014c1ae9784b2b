"""Writes the lock files: every version, transitive ones too, and the hashes of its files.

    python scripts/update_lock.py python3.10 python3.11 python3.12 python3.13
    python scripts/update_lock.py --hashes    # keeps the versions, and writes the hashes again

Each interpreter resolves `.[test]` with pip's dry run for requirements.lock, and
`.[test,peers,lm-eval]` within those versions for what peers.lock and torch.lock hold besides:
Transformers and lm-eval, which only tests with other people's implementations need, and PyTorch
with its CUDA packages. mpi.lock holds what several wafers need besides, and docs.lock what the
documentation needs. A line that does not hold on all interpreters gets a marker. Of the
ranges in setup.py pip takes the newest that fit together. Hashes come from the package index, by
way of uv: those of wheels for Linux and macOS, or of the source if a release has no wheel. Run it
on x86-64 Linux.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import tomllib

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "scripts" / "requirements.lock"
PEERS = ROOT / "scripts" / "peers.lock"
MPI = ROOT / "scripts" / "mpi.lock"
DOCS = ROOT / "scripts" / "docs.lock"
TORCH = ROOT / "scripts" / "torch.lock"
ON_X86_LINUX = 'platform_system == "Linux" and platform_machine == "x86_64"'
ELSEWHERE = 'platform_system != "Linux" or platform_machine != "x86_64"'
# On x86-64 Linux the build for processors alone is locked, of half the size.
TENSORFLOW, TENSORFLOW_CPU = "tensorflow", "tensorflow-cpu"
X86_LINUX_ONLY = ("scipy-openblas32",)  # as in setup.py
# What PyTorch's builds for GPUs bring, each build its own exact versions.
OF_GPU_BUILDS = ("cuda-", "nvidia-", "triton")
IN_TORCH_LOCK = (*OF_GPU_BUILDS, "torch==")
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
# The wheels that are locked: of CPython with its lock, for glibc or macOS.
WHEEL = re.compile(
    r"-(?:(?:py2\.)?py3|py2\.py3|cp3\d+|py3\d+)-(?:none|abi3|cp3(?P<abi>\d+))-"
    r"(?:any|(?:many)?linux.*_(?:x86_64|aarch64)|macosx_.*)\.whl$"
)
HEADER = """\
# Exact versions of all packages of the scripts' environment. Written by scripts/update_lock.py
# from setup.py; do not edit.
"""
PEERS_HEADER = """\
# Exact versions of what tests against independent implementations need besides requirements.lock.
# Written by scripts/update_lock.py from setup.py; do not edit.
"""
TORCH_HEADER = """\
# Exact versions of PyTorch in the package index and of the CUDA packages that it requires, for
# computers that cannot have its builds without CUDA. Written by scripts/update_lock.py from
# setup.py; do not edit.
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
    if name.startswith(OF_GPU_BUILDS):
        return [(name, 'platform_system == "Linux"')]
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
    """Writes a lock file without hashes and says so."""
    path.write_text(header + "\n".join(lines) + "\n", encoding="utf-8")
    print(f"{path}: {len(lines)} packages")


def listed_files(lines: list[str]) -> dict[tuple[str, str], list[tuple[str, str]]]:
    """Returns name and SHA-256 of the files of locked packages, by package and version.

    Raises:
      subprocess.CalledProcessError: a version is not in the package index.
    """
    # Some releases need a certain patch release of Python.
    text = re.sub(r'python_version == "(.*?)"', r'python_full_version == "\1.99"', "\n".join(lines))
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "locked.txt").write_text(text, encoding="utf-8")
        subprocess.run([sys.executable, "-m", "venv", f"{folder}/venv"], check=True)
        subprocess.run([f"{folder}/venv/bin/pip", "install", "--quiet", "uv"], check=True)
        command = [f"{folder}/venv/bin/uv", "pip", "compile", "--quiet", "--no-deps", "--universal"]
        files = ["--output-file", f"{folder}/pylock.toml", f"{folder}/locked.txt"]
        subprocess.run([*command, "--python-version", f"{PYTHONS[0]}.99", *files], check=True)
        found = tomllib.loads((Path(folder) / "pylock.toml").read_text(encoding="utf-8"))
    return {
        (normalized(package["name"]), package["version"]): [
            (file["url"].rpartition("/")[2], file["hashes"]["sha256"])
            for file in (*package.get("wheels", ()), *filter(None, [package.get("sdist")]))
        ]
        for package in found["packages"]
    }


def hashes_of(line: str, files: list[tuple[str, str]]) -> list[str]:
    """Returns the SHA-256 of the files that a line of a lock may install, sorted."""
    pythons = re.findall(r'python_version == "3\.(\d+)"', line) or [p[2:] for p in PYTHONS]
    wheels = [(WHEEL.search(name), digest) for name, digest in files]
    usable = [digest for at, digest in wheels if at and (at["abi"] or pythons[0]) in pythons]
    return sorted(usable or [digest for name, digest in files if not name.endswith(".whl")])


def add_hashes(path: Path) -> None:
    """Writes the hashes of all files into a lock file, in place of those it has."""
    text = re.sub(r" \\\n +--hash=\S+", "", path.read_text(encoding="utf-8"))
    header, lines = (
        [line for line in text.splitlines() if line.startswith("#") == is_header]
        for is_header in (True, False)
    )
    files = listed_files(lines)
    for line in lines:
        name, _, version = line.partition(";")[0].partition("==")
        hashes = hashes_of(line, files[normalized(name), version])
        header.append(" \\\n    ".join([line, *(f"--hash=sha256:{each}" for each in hashes)]))
    path.write_text("\n".join(header) + "\n", encoding="utf-8")


def main(interpreters: list[str]) -> int:
    """Writes the lock files; returns the exit status."""
    if not interpreters:
        print(__doc__, file=sys.stderr)
        return 2
    if interpreters != ["--hashes"]:
        write_versions(interpreters)
    for path in (LOCK, PEERS, TORCH, MPI, DOCS):
        add_hashes(path)
    return 0


def write_versions(interpreters: list[str]) -> None:
    """Resolves on every interpreter and writes the lock files."""
    own = lock_lines(dict(resolve(interpreter, "test") for interpreter in interpreters))
    write(LOCK, HEADER, own)
    within = ("--constraint", str(LOCK))
    both = lock_lines(
        dict(resolve(python, "test,peers,lm-eval", *within) for python in interpreters)
    )
    besides = [line for line in both if line not in own]
    write(PEERS, PEERS_HEADER, [x for x in besides if not x.startswith(IN_TORCH_LOCK)])
    write(TORCH, TORCH_HEADER, [x for x in besides if x.startswith(IN_TORCH_LOCK)])
    mpi = lock_lines(dict(resolve(python, "test,mpi", *within) for python in interpreters))
    write(MPI, MPI_HEADER, [line for line in mpi if line not in own])
    docs = lock_lines(dict(resolve(python, "test,docs", *within) for python in interpreters))
    write(DOCS, DOCS_HEADER, [line for line in docs if line not in own])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
