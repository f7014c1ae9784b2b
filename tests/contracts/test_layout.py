"""What lies where: the top level, and tests beside the package they test.

Which folders are installed is tested next to setup.py's other promises, in tests/scripts.
"""

from __future__ import annotations

from pathlib import PurePosixPath

TOP_LEVEL = {
    "setup.py",
    "pyproject.toml",
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "LICENSE",
    "NOTICE",
    "Dockerfile",
    "cerebras_tf",
    "modelzoo",
    "configs",
    "scripts",
    "tests",
    "docs",
    "benchmarks",
    "SECURITY.md",
}


def test_top_level_holds_only_what_the_design_names(tracked):
    found = {PurePosixPath(path).parts[0] for path in tracked}
    assert {name for name in found if not name.startswith(".")} - TOP_LEVEL == set()


def test_every_package_with_code_has_tests(root, sources):
    packages = {s.path.split("/")[1] for s in sources if s.path.startswith("cerebras_tf/")}
    packages = {package for package in packages if not package.endswith(".py")}
    tested = {s.path.split("/")[1] for s in sources if s.path.startswith("tests/")}
    assert packages - tested == set()
