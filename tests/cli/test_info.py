"""Checks the facts `cerebras-tf info` shows about this machine."""

from __future__ import annotations

import os
import platform

import numpy as np

from cerebras_tf.cli import info
from modelzoo.commands.main import main


def test_info_prints_one_line_per_fact(capsys):
    assert main(["info"]) == 0
    lines = capsys.readouterr().out.splitlines()
    facts = {line.split("  ")[0]: line.split("  ")[-1].strip() for line in lines}
    assert facts["python"] == platform.python_version()
    assert facts["numpy"] == np.__version__
    assert 1 <= int(facts["cores"]) <= os.cpu_count()
    assert facts["memory"].split()[1].startswith("GiB")
    assert {"BLAS", "kernel cache"} <= set(facts)


def test_available_memory_is_within_the_total():
    total, available = info.memory_bytes()
    assert total > 0
    assert available is None or 0 < available <= total


def test_packages_that_are_not_installed_are_left_out(monkeypatch):
    monkeypatch.setattr(info, "PACKAGES", ("numpy", "no-such-package-here"))
    assert info.package_versions() == {"numpy": np.__version__}


def test_cache_description_counts_files_and_bytes(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "kernel.nbc").write_bytes(b"0" * 1_500_000)
    assert info.describe_cache(tmp_path) == f"{tmp_path} (1 file, 1.5 MB)"
    assert "(0 files, 0.0 MB)" in info.describe_cache(tmp_path / "absent")
    assert info.describe_cache(None).startswith("none")
