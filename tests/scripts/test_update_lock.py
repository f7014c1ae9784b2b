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


@pytest.fixture
def project():
    """Metadata of a project with requirements of some platforms only."""
    ours = [
        'tensorflow-cpu<2.16,>=2.15.1; platform_system == "Linux"',
        'tensorflow<2.16,>=2.15.1; platform_system != "Linux"',
        "numpy<2,>=1.26",
    ]
    return package("cerebras_tf", "0.1.0", requires_dist=ours)


def test_what_other_platforms_need_is_resolved_besides(update_lock, project):
    here = [project, package("tensorflow_cpu", "2.15.1"), package("numpy", "1.26.4")]
    assert update_lock.requirements_elsewhere(here) == ["tensorflow<2.16,>=2.15.1"]


def test_lock_lines_are_exact_and_keep_the_platforms_of_setup(update_lock, project):
    versions = {"tensorflow_cpu": "2.15.1", "tensorflow": "2.15.1", "numpy": "1.26.4"}
    resolved = {"3.11": [project, *(package(*item) for item in versions.items())]}
    assert update_lock.lock_lines(resolved) == [
        "numpy==1.26.4",
        'tensorflow-cpu==2.15.1; platform_system == "Linux"',
        'tensorflow==2.15.1; platform_system != "Linux"',
    ]


def test_markers_of_platform_and_python_are_joined(update_lock, project):
    resolved = {
        "3.10": [project, package("tensorflow", "2.15.0")],
        "3.11": [project, package("tensorflow", "2.15.1")],
    }
    assert update_lock.lock_lines(resolved) == [
        'tensorflow==2.15.0; (platform_system != "Linux") and (python_version == "3.10")',
        'tensorflow==2.15.1; (platform_system != "Linux") and (python_version == "3.11")',
    ]


def test_update_lock_without_interpreters_says_how_it_is_used(update_lock, capsys):
    assert update_lock.main([]) == 2
    assert "python scripts/update_lock.py python3.10" in capsys.readouterr().err
