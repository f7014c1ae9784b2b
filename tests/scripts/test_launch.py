"""launch.py: a script started by any Python goes on in the checkout's environment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
STARTED_BY_ANY = sorted(path for path in SCRIPTS.glob("*.py") if "launch." in path.read_text())


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory):
    """A Python without any package, as a user has it."""
    folder = tmp_path_factory.mktemp("bare") / "venv"
    make = [sys.executable, "-m", "venv", "--without-pip", str(folder)]
    subprocess.run(make, check=True, timeout=120)
    return str(folder / "bin" / "python")


def test_most_scripts_can_be_started_by_any_python():
    others = {path.name for path in SCRIPTS.glob("*.py")} - {path.name for path in STARTED_BY_ANY}
    assert others == {"launch.py", "set_up_environment.py", "update_lock.py"}


@pytest.mark.parametrize("script", STARTED_BY_ANY, ids=lambda path: path.name)
def test_a_bare_python_hands_the_script_and_its_arguments_on(script, ready, bare_python):
    path = str(script)
    assert ready.arguments(bare_python, path, "--x", "two words") == [path, "--x", "two words"]


def test_the_script_then_runs_there_and_shows_its_own_name(real, bare_python):
    ran = real.run(bare_python, str(SCRIPTS / "create_vocab.py"), "--vocab_sise", "3")
    assert ran.returncode == 2
    assert "unknown option --vocab_sise. Did you mean --vocab_size?" in " ".join(ran.stderr.split())
    assert ran.stderr.startswith("create_vocab.py: ")


def test_an_environment_without_packages_is_entered_once(launchers, bare_python):
    launchers.complete(f'#!/bin/bash\nexec "{bare_python}" "$@"\n')
    ran = launchers.run(bare_python, str(SCRIPTS / "create_vocab.py"), "-h")
    assert ran.returncode == 1
    assert "ModuleNotFoundError" in ran.stderr


def test_a_python_that_has_the_packages_needs_no_environment(launchers):
    ran = launchers.run(sys.executable, str(SCRIPTS / "bench_lengths.py"), "-h", PATH="/nowhere")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert not launchers.venv.exists()
