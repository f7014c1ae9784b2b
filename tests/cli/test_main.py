"""Checks the `cerebras-tf` program: commands, lazy loading, exit codes."""

from __future__ import annotations

import subprocess
import sys
import types

import pytest

from cerebras_tf.cli import main as program
from cerebras_tf.errors import ConfigError


@pytest.fixture
def command(monkeypatch):
    """Puts a command `echo` in the table whose module notes what it was called with."""
    module = types.ModuleType("echo_command")
    module.calls = []
    module.add_arguments = lambda parser: parser.add_argument("--word", default="x")

    def run(args):
        module.calls.append(args.word)
        if args.word == "bad":
            raise ConfigError("echo: no bad words. Received: bad. Say another.")

    module.run = run
    monkeypatch.setitem(sys.modules, "echo_command", module)
    monkeypatch.setitem(program.COMMANDS, "echo", ("echo_command", "say a word"))
    return module


def test_a_command_gets_its_arguments(command):
    assert program.main(["echo", "--word", "hello"]) == 0
    assert command.calls == ["hello"]


def test_a_commands_mistake_of_the_user_exits_2(command, capsys):
    assert program.main(["echo", "--word", "bad"]) == 2
    assert capsys.readouterr().err.startswith("cerebras-tf: echo: no bad words.")


def test_no_command_and_unknown_commands_exit_2(capsys):
    assert program.main([]) == 2
    assert program.main(["brew"]) == 2
    assert "invalid choice: 'brew'" in capsys.readouterr().err


def test_help_lists_every_command_and_imports_none(capsys, monkeypatch):
    def refuse(name):
        raise AssertionError(f"imported {name}")

    monkeypatch.setattr(program.importlib, "import_module", refuse)
    assert program.main(["--help"]) == 0
    output = capsys.readouterr().out
    for name, (_, summary) in program.COMMANDS.items():
        assert name in output
        assert summary in " ".join(output.split())


def test_the_program_starts_without_tensorflow():
    code = (
        "import sys; from cerebras_tf.cli.main import main; code = main(['--help']); "
        "sys.exit(code or 'tensorflow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
