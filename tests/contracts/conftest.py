"""Reads the source tree once for all contract tests. It judges nothing itself."""

from __future__ import annotations

import ast
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CODE_FOLDERS = ("cerebras_tf", "modelzoo", "benchmarks", "scripts", "tests")


@dataclass(frozen=True)
class SourceFile:
    """A Python file of the checkout.

    Attributes:
        path: relative to the checkout, with forward slashes.
        text: its content.
        tree: its syntax tree.
    """

    path: str
    text: str
    tree: ast.Module


def python_files() -> list[Path]:
    """Every Python file that is part of the tree, setup.py included."""
    found = [ROOT / "setup.py"]
    for folder in CODE_FOLDERS:
        found.extend(sorted((ROOT / folder).rglob("*.py")))
    return found


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout's folder."""
    return ROOT


@pytest.fixture(scope="session")
def sources() -> list[SourceFile]:
    """Every Python file of the tree, parsed."""
    read = []
    for path in python_files():
        text = path.read_text(encoding="utf-8")
        read.append(SourceFile(path.relative_to(ROOT).as_posix(), text, ast.parse(text)))
    assert len(read) > len(CODE_FOLDERS)
    return read


@pytest.fixture(scope="session")
def tracked() -> list[str]:
    """Paths git knows, relative to the checkout; the tests that need them skip without git."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    return sorted(path for path in listed.stdout.split("\0") if path and (ROOT / path).is_file())
