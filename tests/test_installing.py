"""Commands that install what is missing work as they are printed, from any folder."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from cerebras_tf import installing


@pytest.mark.parametrize("python", ["/a b/python", sys.executable])
def test_the_command_is_of_the_python_that_runs(python, monkeypatch):
    monkeypatch.setattr(sys, "executable", python)
    words = shlex.split(installing.pip_install("h5py"))
    assert words == [python, "-m", "pip", "install", "h5py"]


def test_a_checkout_gives_its_extra_by_its_whole_path(monkeypatch, tmp_path):
    root = Path(installing.__file__).parents[1]
    wanted = (
        ["-e", f"{root}[peers]"] if (root / "setup.py").is_file() else ["torch", "transformers"]
    )
    index = ["--extra-index-url", installing.CPU_TORCH]
    assert shlex.split(installing.install_peers())[4:] == index + wanted
    monkeypatch.setattr(installing, "__file__", str(tmp_path / "cerebras_tf/installing.py"))
    assert shlex.split(installing.install_peers())[4:] == [*index, "torch", "transformers"]
