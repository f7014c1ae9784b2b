"""The lock file is whole: exact, within setup.py's pins, and closed under requirements."""

from __future__ import annotations

import importlib.metadata
import re
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
LOCK = SCRIPTS / "requirements.lock"
HASHES = re.compile(r"(?: \\\n    --hash=sha256:[0-9a-f]{64})+$", re.MULTILINE)
PYTHONS = ("3.10", "3.11", "3.12", "3.13")


def locked(path: Path = LOCK) -> list[Requirement]:
    """The requirements of a lock file."""
    text = re.sub(HASHES, "", path.read_text(encoding="utf-8"))
    return [Requirement(line) for line in text.splitlines() if not line.startswith("#")]


def version_of(requirement: Requirement) -> str:
    """The exact version a line asks for."""
    (specifier,) = requirement.specifier
    assert specifier.operator == "==", requirement
    return specifier.version


def holds(requirement: Requirement, python: str) -> bool:
    """Does the line count for this version of Python, on x86-64 Linux?"""
    platform = {"platform_system": "Linux", "platform_machine": "x86_64", "extra": ""}
    environment = {"python_version": python, "python_full_version": f"{python}.9", **platform}
    return requirement.marker is None or requirement.marker.evaluate(environment)


@pytest.mark.parametrize("python", PYTHONS)
def test_each_package_has_one_exact_version_on_each_python(python):
    names = [canonicalize_name(line.name) for line in locked() if holds(line, python)]
    assert len(names) > 50
    assert sorted(names) == sorted(set(names))
    assert all(version_of(line) for line in locked())


@pytest.mark.parametrize("path", sorted(SCRIPTS.glob("*.lock")), ids=lambda path: path.stem)
def test_each_package_has_hashes(path):
    packages = [line for line in path.read_text("utf-8").splitlines() if "==" in line[:60]]
    assert len(packages) == len(re.findall(HASHES, path.read_text("utf-8"))) == len(locked(path))


@pytest.mark.parametrize("python", PYTHONS)
def test_lock_meets_every_requirement_of_setup(python, setup_fields):
    versions = {
        canonicalize_name(line.name): version_of(line) for line in locked() if holds(line, python)
    }
    if "tensorflow-cpu" in versions:  # which serves as tensorflow, see update_lock.py
        versions["tensorflow"] = versions["tensorflow-cpu"]
    wanted = [*setup_fields["install_requires"], *setup_fields["extras_require"]["test"]]
    missed = [
        str(requirement)
        for requirement in map(Requirement, wanted)
        if holds(requirement, python)
        and versions.get(canonicalize_name(requirement.name), "") not in requirement.specifier
    ]
    assert missed == []


def test_requirements_of_locked_packages_are_locked_too():
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    versions = {
        canonicalize_name(line.name): version_of(line) for line in locked() if holds(line, python)
    }
    versions["tensorflow"] = versions["tensorflow-cpu"]  # see update_lock.py
    missed = []
    for distribution in importlib.metadata.distributions():
        name = canonicalize_name(distribution.metadata["Name"])
        if versions.get(name) != distribution.version:
            continue
        for requirement in map(Requirement, distribution.requires or []):
            applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            version = versions.get(canonicalize_name(requirement.name))
            if applies and (version is None or version not in requirement.specifier):
                missed.append(f"{name} needs {requirement}; locked: {version}")
    assert missed == []


@pytest.mark.parametrize("extra", ["peers", "mpi"])
@pytest.mark.parametrize("python", PYTHONS)
def test_what_is_installed_besides_meets_setup_and_agrees_with_it(python, extra, setup_fields):
    locks = [f"{extra}.lock", *(["torch.lock"] if extra == "peers" else [])]
    own, peers = (
        {canonicalize_name(line.name): version_of(line) for line in lines if holds(line, python)}
        for lines in (locked(), [each for lock in locks for each in locked(SCRIPTS / lock)])
    )
    assert {name: own[name] for name in own.keys() & peers.keys()} == {
        name: peers[name] for name in own.keys() & peers.keys()
    }
    missed = [
        str(requirement)
        for requirement in map(Requirement, setup_fields["extras_require"][extra])
        if holds(requirement, python)
        and peers.get(canonicalize_name(requirement.name), "") not in requirement.specifier
    ]
    assert missed == []
