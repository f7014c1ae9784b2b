"""Cuts, kills and stops of either side: results are those of an undisturbed run, bit for bit."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("grpc")
pytest.importorskip("cryptography")


def run_schedules(count, first=0):
    command = [sys.executable, "-m", "tests.address.schedules", str(count), str(first)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0 and " 0 failed" in found.stdout, found.stdout + found.stderr


def test_faults_of_either_side_change_no_result():
    run_schedules(1)


@pytest.mark.slow
def test_many_schedules_of_faults_change_no_result():
    run_schedules(200, 1)
