"""A checkout in miniature whose environment is complete but fake: it records, it installs nothing.

The launchers under test are the real ones, reached through symbolic links.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts"
# Prints its arguments and what the launchers put into the environment, one a line.
FAKE_PYTHON = """#!/bin/bash
for argument in "$@"; do echo "argument: $argument"; done
echo "mode: ${CEREBRAS_EXECUTION_MODE-}"
echo "folder: $PWD"
echo "log level: ${TF_CPP_MIN_LOG_LEVEL-}"
"""


def write_program(path: Path, text: str) -> Path:
    """Writes a file that can be run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return path


class Launchers:
    """Runs the checkout's scripts with an environment of the test's own making.

    Attributes:
        venv: the environment's folder, where CEREBRAS_TF_VENV points.
        pyenv: the folder of pyenv, which is not there.
        conda: the folder of conda, which is not there.
        cwd: the folder commands are run from.
    """

    def __init__(self, folder: Path):
        self.venv = folder / "venv"
        self.pyenv, self.conda = folder / "pyenv", folder / "conda"
        self.cwd = folder / "user's folder"
        self.cwd.mkdir()

    def stamp(self) -> str:
        """The stamp the launchers expect; they compute it, and tell it when they set up."""
        return _bash(f'. "{SCRIPTS}/environment.sh"; set_up_stamp')

    def complete(self, python: str = FAKE_PYTHON) -> None:
        """Makes the environment look complete, with the given program as its Python."""
        write_program(self.venv / "bin" / "python", python)
        (self.venv / ".complete").write_text(self.stamp(), encoding="utf-8")

    def complete_mpi(self) -> None:
        """Makes the complete environment look as if MPI were installed, as it is in a real one."""
        stamp = _bash(f'cat "{SCRIPTS}/mpi.lock" "{self.venv}/.complete" | cksum')
        (self.venv / ".mpi").write_text(stamp, encoding="utf-8")

    def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs a script of the checkout; the first word is its name or a path."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("CEREBRAS_", "TF_"))}
        # Pythons of this machine that are not on PATH are not found.
        elsewhere = {"PYENV_ROOT": str(self.pyenv), "CONDA_EXE": str(self.conda / "bin/conda")}
        variables = {**kept, "CEREBRAS_TF_VENV": str(self.venv), **elsewhere, **environment}
        program = command[0] if "/" in command[0] else str(SCRIPTS / command[0])
        return subprocess.run(
            [program, *command[1:]],
            cwd=self.cwd,
            env=variables,
            capture_output=True,
            text=True,
            timeout=120,
            stdin=subprocess.DEVNULL,
        )

    def arguments(self, *command: str, **environment: str) -> list[str]:
        """The arguments that Python gets when a script is run."""
        ran = self.run(*command, **environment)
        assert ran.returncode == 0, ran.stderr
        lines = ran.stdout.splitlines()
        return [line[len("argument: ") :] for line in lines if line.startswith("argument: ")]


def _bash(command: str) -> str:
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    return done.stdout.rstrip("\n")


@pytest.fixture
def launchers(tmp_path) -> Launchers:
    """Launchers whose environment is not made yet."""
    return Launchers(tmp_path)


@pytest.fixture
def ready(launchers) -> Launchers:
    """Launchers whose environment is complete and whose Python prints what it got."""
    launchers.complete()
    return launchers


@pytest.fixture
def real(launchers) -> Launchers:
    """Launchers whose environment is complete and whose Python is the one running the tests."""
    launchers.complete(f'#!/bin/bash\nexec "{sys.executable}" "$@"\n')
    return launchers


@pytest.fixture
def programs(tmp_path):
    """A folder for PATH with the programs the scripts need and, so far, no Python."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for name in ("bash", "env", "cat", "cksum", "dirname", "basename", "readlink"):
        found = next(
            Path(entry) / name
            for entry in os.environ["PATH"].split(os.pathsep)
            if os.access(Path(entry) / name, os.X_OK)
        )
        (folder / name).symlink_to(found)
    return folder


@pytest.fixture
def setup_fields(monkeypatch):
    """What setup.py passes to setuptools."""
    captured = {}
    monkeypatch.setattr("setuptools.setup", lambda **fields: captured.update(fields))
    monkeypatch.chdir(ROOT)
    spec = importlib.util.spec_from_file_location("setup_of_checkout", ROOT / "setup.py")
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    return captured
