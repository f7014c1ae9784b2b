"""cerebras-tf bench memory: a deeper model takes hardly more memory where its state is on files."""

import json
import subprocess
import sys

import pytest

from modelzoo.commands.main import main

BENCH = [sys.executable, "-m", "modelzoo.commands.main", "bench"]
SIZES = ("--hidden", "768", "--sequence", "32", "--batch", "1", "--vocabulary", "512")


@pytest.mark.tf
def test_a_depth_that_does_not_train_ends_the_program(tmp_path, capfd):
    words = ["bench", "memory", "--folder", str(tmp_path), *SIZES, "--layers", "1"]
    assert main([*words, "--wafer_gb", "0.0001"]) == 2
    shown, error = capfd.readouterr()
    assert not shown and "Traceback" not in error
    assert "training of 1 layers must succeed. Received: exit code 2." in " ".join(error.split())


@pytest.mark.tf
@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["--clip", "1.0"]])
def test_weights_and_optimizer_state_stay_on_files(tmp_path, more):
    found = []
    for layers in (2, 5):
        command = [*BENCH, "memory", "--folder", tmp_path, *SIZES, "--ram_gb", "0.1"]
        command += ["--layers", layers, *more, "--one"]
        ran = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300)
        assert ran.returncode == 0, ran.stderr
        found.append(json.loads(ran.stdout.splitlines()[-1]))
    small, large = found
    state = large["state"] - small["state"]
    assert state > 250e6
    assert large["anonymous"] - small["anonymous"] < 0.5 * state
