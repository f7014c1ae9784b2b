"""What is built for others to install is whole, and runs where there is no checkout.

The backend that pip calls builds it, from a copy of the tree, because building leaves files behind.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("cerebras_tf", "modelzoo", "configs")
PAGES = ("setup.py", "pyproject.toml", "README.md", "LICENSE", "NOTICE")
BUILD = "from setuptools import build_meta; print(build_meta.build_{kind}({folder!r}))"


def build(kind: str, source: Path, folder: Path) -> Path:
    """Builds a wheel or an sdist of a tree into a folder; returns its file."""
    code = BUILD.format(kind=kind, folder=str(folder))
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=source, capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stderr
    return folder / ran.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the tree and what is built of it."""
    made = tmp_path_factory.mktemp("distribution")
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, made / "tree" / name, ignore=ignored)
    for name in PAGES:
        shutil.copy(ROOT / name, made / "tree" / name)
    return made


@pytest.fixture(scope="module")
def sdist(folder):
    """The sdist, unpacked: the folder of its tree."""
    with tarfile.open(build("sdist", folder / "tree", folder)) as archive:
        archive.extractall(folder / "sdist")
    (tree,) = (folder / "sdist").iterdir()
    return tree


@pytest.fixture(scope="module")
def wheel(folder, sdist):
    """The wheel, built of the sdist alone and unpacked."""
    with zipfile.ZipFile(build("wheel", sdist, folder)) as archive:
        archive.extractall(folder / "wheel")
    return folder / "wheel"


def files(folder: Path, pattern: str) -> set[str]:
    """Paths below a folder."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob(pattern)}


def test_wheel_holds_every_module_under_the_name_it_is_imported_by(wheel):
    modules = {
        f"{top}/{path}" for top in ("cerebras_tf", "modelzoo") for path in files(ROOT / top, "*.py")
    }
    dropin = {path for path in modules if path.startswith("cerebras_tf/dropin/")}
    installed = {
        f"cerebras/{path}".removeprefix("cerebras/roots/")
        for path in (path.removeprefix("cerebras_tf/dropin/") for path in dropin)
    }
    assert len(modules) > 300 and "tfwse/__init__.py" in installed
    # The folder `roots` is no package itself.
    assert files(wheel, "*.py") == modules - dropin | installed - {"__init__.py"}


def test_wheel_holds_every_config_and_the_licence(wheel):
    names = {path.name for path in (ROOT / "configs").glob("*.yaml")}
    assert {path.name for path in (wheel / "modelzoo" / "configs").iterdir()} == names
    (about,) = wheel.glob("cerebras_tf-*.dist-info")
    for name in ("LICENSE", "NOTICE"):
        (found,) = about.rglob(name)
        assert found.read_bytes() == (ROOT / name).read_bytes()
    text = (about / "METADATA").read_text(encoding="utf-8")
    assert "\nLicense: Apache-2.0\n" in text and "\nRequires-Python: >=3.10\n" in text
    programs = (about / "entry_points.txt").read_text()
    assert "cerebras-tf = cerebras_tf.run_module:program" in programs


def test_the_installed_program_uses_its_own_model_zoo_and_configs(wheel, tmp_path):
    """The original zoo's package is called modelzoo, too, and may be on PYTHONPATH."""
    code = (
        "from cerebras_tf.run_module import program\n"
        "try: program()\n"
        "finally: import modelzoo; print(modelzoo.__file__)"
    )
    other = tmp_path / "zoo" / "modelzoo"
    other.mkdir(parents=True)
    (other / "__init__.py").touch()
    ran = subprocess.run(
        [sys.executable, "-c", code, "configs", "copy", "gpt3_tiny"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{other.parent}{os.pathsep}{wheel}"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.splitlines() == ["params_gpt3_tiny.yaml", f"{wheel}/modelzoo/__init__.py"]
    copied = (tmp_path / "params_gpt3_tiny.yaml").read_bytes()
    assert copied == (ROOT / "configs" / "params_gpt3_tiny.yaml").read_bytes()
