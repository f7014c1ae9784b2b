"""Fixtures of the tests of the command line. Holds no tests."""

from __future__ import annotations

import shutil

import pytest


@pytest.fixture
def command_line(tmp_path):
    """A folder with a params file and data, and the command line run on it."""
    from tests.e2e.command_line import CommandLine

    return CommandLine(tmp_path)


@pytest.fixture(scope="session")
def trained_once(tmp_path_factory):
    """A command line whose folder `out` holds a run of 10 steps on the wafer, and its result."""
    from tests.e2e.command_line import CommandLine

    command_line = CommandLine(tmp_path_factory.mktemp("trained"))
    return command_line, command_line("train")


@pytest.fixture
def trained(command_line, trained_once):
    """A command line whose folder `out` holds a run of 10 steps on the wafer."""
    shutil.copytree(trained_once[0].folder / "out", command_line.folder / "out")
    return command_line
