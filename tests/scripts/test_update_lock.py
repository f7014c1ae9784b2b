"""update_lock.py merges what pip resolves on each Python into one set of lines."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.fixture
def update_lock():
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("update_lock", SCRIPTS / "update_lock.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def package(name: str, version: str, **fields):
    """Metadata of a resolved package as pip reports it."""
    return {"name": name, "version": version, **fields}


def test_lock_lines_marks_only_versions_that_differ_between_pythons(update_lock):
    resolved = {
        "3.10": [package("numba", "0.60.0"), package("PyYAML", "6.0.3")],
        "3.11": [package("numba", "0.68.1"), package("PyYAML", "6.0.3")],
    }
    for packages in resolved.values():
        packages.append(package("cerebras_tf", "0.1.0", requires_dist=["numba>=0.60", "PyYAML"]))
    assert update_lock.lock_lines(resolved) == [
        'numba==0.60.0; python_version == "3.10"',
        'numba==0.68.1; python_version == "3.11"',
        "pyyaml==6.0.3",
    ]


def test_tensorflow_is_locked_in_the_build_for_each_platform(update_lock):
    on_x86, elsewhere = update_lock.ON_X86_LINUX, update_lock.ELSEWHERE
    resolved = {
        "3.11": [package("tensorflow_cpu", "2.15.1"), package("scipy-openblas32", "0.3")],
        "3.13": [package("tensorflow", "2.21.0"), package("scipy-openblas32", "0.3")],
    }
    old, new = ('(python_version == "3.11")', '(python_version == "3.13")')
    assert update_lock.lock_lines(resolved) == [
        f"scipy-openblas32==0.3; {on_x86}",
        f"tensorflow-cpu==2.15.1; ({on_x86}) and {old}",
        f"tensorflow-cpu==2.21.0; ({on_x86}) and {new}",
        f"tensorflow==2.15.1; ({elsewhere}) and {old}",
        f"tensorflow==2.21.0; ({elsewhere}) and {new}",
    ]


def test_update_lock_without_interpreters_says_how_it_is_used(update_lock, capsys):
    assert update_lock.main([]) == 2
    assert "python scripts/update_lock.py python3.10" in capsys.readouterr().err


def test_hashes_are_those_of_wheels_for_the_pythons_of_a_line(update_lock):
    names = ["a-1-cp312-cp312-manylinux_2_17_x86_64.manylinux2014_x86_64", "a-1-cp39-abi3-any"]
    others = ["a-1-cp313-cp313t-macosx_11_0_arm64", "a-1-cp311-cp311-macosx_11_0_arm64"]
    others += ["a-1-cp312-cp312-win_amd64", "a-1-cp312-cp312-musllinux_1_2_x86_64"]
    files = [(f"{name}.whl", name) for name in (*names, *others)]
    line = 'a==1; python_version == "3.12" or python_version == "3.13"'
    assert update_lock.hashes_of(line, [*files, ("a-1.tar.gz", "source")]) == sorted(names)
    assert update_lock.hashes_of(line, [(files[2]), ("a-1.tar.gz", "source")]) == ["source"]
