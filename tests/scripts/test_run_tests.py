"""run_tests runs every check whatever the others found, and fails when any failed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cerebras_tf.installing import CPU_TORCH
from tests.conftest import share_cores

ROOT = Path(__file__).resolve().parents[2]
# Prints its arguments; as ruff, mypy or pytest it ends with the status the test asks for.
FAKE_PYTHON = """#!/bin/bash
echo "python $*"
[ "$2" = pytest ] && echo "checks: ${CEREBRAS_TF_CHECKS-}"
for name in $FAILING; do [[ "$2 $3" == *"$name"* ]] && exit 1; done
exit 0
"""


@pytest.fixture
def checks(launchers):
    """Launchers whose Python pretends to check."""
    launchers.complete(FAKE_PYTHON)
    return launchers


def test_run_tests_checks_style_and_types_before_the_tests(checks):
    ran = checks.run("run_tests", FAILING="")
    assert ran.returncode == 0
    assert [line.split()[2] for line in ran.stdout.splitlines() if line.startswith("python")] == [
        "ruff",
        "ruff",
        "mypy",
        "pytest",
    ]
    assert "python -m pytest -m not slow --durations 25\n" in ran.stdout
    assert "checks: ruff check ok, ruff format ok, mypy ok\n" in ran.stdout


@pytest.mark.parametrize("failing", ["ruff", "mypy", "pytest", "ruff mypy pytest"])
def test_run_tests_fails_when_any_check_fails_and_runs_the_others(checks, failing):
    ran = checks.run("run_tests", FAILING=failing)
    assert ran.returncode == 1
    assert "python -m pytest -m not slow --durations 25\n" in ran.stdout
    assert ("mypy FAILED" in ran.stdout) == ("mypy" in failing)


def test_run_tests_with_arguments_runs_pytest_alone_on_them(checks):
    ran = checks.run("run_tests", "tests/ir", "-k", "a b", FAILING="")
    assert ran.stdout == "python -m pytest tests/ir -k a b\nchecks: \n"


@pytest.mark.parametrize(
    ("cores", "arguments", "options"),
    [
        (4, (), "-n 4 --dist worksteal --maxfail=3"),
        (1, (), "--maxfail=3"),
        (4, ("tests/ir",), "--maxfail=3"),
    ],
)
def test_only_the_whole_run_spreads_over_the_cores(launchers, programs, cores, arguments, options):
    launchers.complete('#!/bin/bash\necho "$2: $PYTEST_ADDOPTS"\n')
    (programs / "nproc").write_text(f"#!/bin/bash\necho {cores}\n", encoding="utf-8")
    (programs / "nproc").chmod(0o755)
    search = f"{programs}:{os.environ['PATH']}"
    ran = launchers.run("run_tests", *arguments, PATH=search, PYTEST_ADDOPTS="--maxfail=3")
    assert ran.stdout.splitlines()[-1] == f"pytest: {options}"


@pytest.mark.parametrize("processes", [[], ["-n", "1"]])
def test_slow_tests_that_were_left_out_and_costs_are_shown(processes, tmp_path):
    (tmp_path / "conftest.py").symlink_to(ROOT / "tests" / "conftest.py")
    text = "import pytest\n@pytest.mark.slow\ndef test_a(): pass\ndef test_b(): pass\n"
    (tmp_path / "test_it.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-m", "not slow", *processes]
    command += ["--durations", "3", "test_it.py"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0
    assert "slow tests left out: 1. scripts/run_tests -m slow runs them." in ran.stdout
    assert re.search(r"processor seconds: \d+ =+\n +\d+\.\d  \S*test_it\.py\n", ran.stdout)


def test_processes_of_pytest_share_the_cores_and_keep_what_is_set():
    alone, second = {}, {"PYTEST_XDIST_WORKER_COUNT": "2", "OPENBLAS_NUM_THREADS": "7"}
    share_cores(alone, cores=8)
    share_cores(second, cores=8)
    assert alone == {}
    assert second["OPENBLAS_NUM_THREADS"] == "7"
    assert second["TF_NUM_INTRAOP_THREADS"] == "4"


def test_ci_runs_the_same_as_run_tests_also_where_slurm_does_not_start(checks):
    given = {"FAILING": "mypy", "TMPDIR": "/dev/null", "CEREBRAS_TF_PYTHON": sys.executable}
    ran = checks.run(str(ROOT / ".ci" / "run"), **given)
    assert ran.returncode == 1
    assert "NOTHING IS TESTED THROUGH SLURM" in ran.stderr
    assert "python -m pytest -m not slow --durations 25\n" in ran.stdout


def test_peers_are_installed_once_where_asked_for(checks):
    for is_first in (True, False):
        ran = checks.run("run_tests", "tests/ir", FAILING="", CEREBRAS_TF_PEERS="1")
        assert ran.returncode == 0
        assert ("installing the packages of scripts/peers.lock" in ran.stderr) == is_first
    log = (checks.venv / "peers.log").read_text(encoding="utf-8")
    first, second = (line for line in log.splitlines() if "pip install" in line)
    assert f"--index-url {CPU_TORCH} " in first and "--require-hashes" not in first
    assert "--require-hashes" in second and "peers.lock" in second and "torch" not in second
    assert "peers.lock" not in checks.run("run_tests", "tests/ir", FAILING="").stderr


def test_peers_that_cannot_be_installed_are_told(checks):
    ran = checks.run("run_tests", "tests/ir", FAILING="pip", CEREBRAS_TF_PEERS="1")
    assert ran.returncode == 2
    assert "7 GB of CUDA packages" in ran.stderr
    assert "scripts/torch.lock" in (checks.venv / "peers.log").read_text(encoding="utf-8")
    assert "peers.lock could not be installed" in ran.stderr
