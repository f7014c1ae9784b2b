"""`cerebras-tf bundle` downloads the packages of the lock files, and PyTorch without CUDA."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from cerebras_tf.installing import CPU_TORCH
from modelzoo.commands import bundle
from modelzoo.commands.main import main
from tests.messages import names


@pytest.fixture
def commands(monkeypatch):
    """What pip is called with; its exit code is `commands.code`."""
    found = SimpleNamespace(all=[], code=0)

    def run(command, input, text):
        found.all.append(" ".join([*command, "<", input]))
        return SimpleNamespace(returncode=found.code)

    monkeypatch.setattr(bundle.subprocess, "run", run)
    return found


@pytest.mark.parametrize("include", [[], ["mpi"], ["peers"]])
def test_locked_packages_are_downloaded_and_pytorch_without_cuda_first(commands, include, tmp_path):
    folder = str(tmp_path / "wheels")
    assert main(["bundle", folder, *(["--include", *include] if include else [])]) == 0
    *before, last = commands.all
    for name in ("requirements", *include):
        assert f"{name}.lock" in last
    assert len(before) == (include == ["peers"])
    assert "--require-hashes" in last
    for command in before:
        assert names(command, f"--index-url {CPU_TORCH} ", f"--dest {folder}", "< torch==")


def test_a_failed_download_is_refused(commands, tmp_path, capsys):
    commands.code = 1
    assert main(["bundle", str(tmp_path)]) == 2
    assert names(capsys.readouterr().err, "bundle", "package index")
