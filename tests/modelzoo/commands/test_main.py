"""Checks the `cerebras-tf` program: commands, lazy loading, exit codes."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

from cerebras_tf.errors import ConfigError
from modelzoo.commands import main as program
from tests.messages import names


@pytest.fixture
def command(monkeypatch):
    """Puts a command `echo` in the table whose module notes what it was called with."""
    module = types.ModuleType("echo_command")
    module.calls = []
    module.add_arguments = lambda parser, default: parser.add_argument("--word", default=default)

    def run(args):
        module.calls.append(args.word)
        if args.word == "bad":
            raise ConfigError("echo: no bad words. Received: bad. Say another.")
        if args.word.startswith("/"):
            Path(args.word).read_bytes()

    module.run = run
    monkeypatch.setitem(sys.modules, "echo_command", module)
    echo = program.Command("say a word", "echo_command", {"default": "x"})
    monkeypatch.setitem(program.ROOT.commands, "echo", echo)
    group = program.Command("speak", commands={"echo": echo})
    monkeypatch.setitem(program.ROOT.commands, "speak", group)
    return module


def test_commands_keep_tensorflows_native_notes_off_the_console(command, monkeypatch):
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    program.main(["echo"])
    assert os.environ["TF_CPP_MIN_LOG_LEVEL"] == "2"


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        ("bench --memoryx_ram_gb 2", ("--memoryx_ram_gb", "--memoryx_dir")),
        ("bench --memoryx_dir x --peers", ("--peers",)),
        ("bench --model gptj --pad batch", ("bert or transformer", "gptj")),
        ("bench --memoryx_dir x --memoryx_ram_gb nan", ("a number above 0",)),
        ("convert from_tf a b --max_shard_gb inf", ("a number above 0",)),
        ("run it.zip --steps 2 --save x", ("--steps, --save", "--inputs")),
    ],
)
def test_arguments_without_effect_are_refused(words, facts, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    with contextlib.suppress(SystemExit):  # of the parser
        assert program.main(words.split()) == 2
    assert names(capsys.readouterr().err, *facts)


def test_mistakes_of_the_user_exit_2_with_the_nearest_name(command, capsys):
    for words, fact in (
        ("echo --word bad", "cerebras-tf: echo: no bad words."),
        ("", "usage: cerebras-tf COMMAND"),
        ("brew", "'brew'"),
        ("ekho", "Did you mean echo?"),
        ("echo --wrod x", "Did you mean --word?"),
    ):
        assert program.main(words.split()) == 2
        assert fact in capsys.readouterr().err


def test_a_command_of_a_group_is_two_words(command, capsys):
    assert program.main(["speak", "echo"]) == 0
    assert program.main(["speak"]) == 2
    assert "say a word" in capsys.readouterr().err
    assert program.main(["speak", "-h"]) == 0
    assert capsys.readouterr().out.startswith("usage: cerebras-tf speak COMMAND")
    assert command.calls == ["x"]


def test_options_alone_mean_the_groups_default(command, monkeypatch):
    group = program.Command(
        "speak", commands=program.ROOT.commands["speak"].commands, default="echo"
    )
    monkeypatch.setitem(program.ROOT.commands, "speak", group)
    assert program.main(["speak"]) == program.main(["speak", "--word", "y"]) == 0
    assert command.calls == ["x", "y"]


def test_benchmarks_need_a_checkout(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(program.modelzoo, "__file__", str(tmp_path / "modelzoo" / "__init__.py"))
    assert program.main(["bench", "lengths"]) == 2
    assert names(capsys.readouterr().err, "cerebras-tf bench", tmp_path, "checkout")


def every_command(group=program.ROOT, words=()):
    """The words of every command there is."""
    for name, entry in group.commands.items():
        if entry.commands:
            yield from every_command(entry, (*words, name))
        else:
            yield [*words, name]


@pytest.mark.parametrize("words", list(every_command()), ids=" ".join)
def test_every_command_and_all_its_options_have_help(words, capsys, monkeypatch):
    parsers = []

    class Kept(program.Parser):
        def __init__(self, **settings):
            super().__init__(**settings)
            parsers.append(self)

    monkeypatch.setattr(program, "Parser", Kept)
    assert program.main([*words, "-h"]) == 0
    texts = {action.dest: action.help or "" for action in parsers[-1]._actions}
    assert not [name for name, text in texts.items() if not re.sub(r"\(?default:.*", "", text)]
    text = capsys.readouterr().out
    assert text.startswith(f"usage: cerebras-tf {' '.join(words)} [-h]")
    assert "--debug" in text and "default: None" not in text and "default: False" not in text


def test_help_lists_every_command_and_imports_none(capsys, monkeypatch):
    def refuse(name):
        raise AssertionError(f"imported {name}")

    monkeypatch.setattr(program.importlib, "import_module", refuse)
    assert program.main(["--help"]) == 0
    output = capsys.readouterr().out
    for name, entry in program.ROOT.commands.items():
        assert f"  {name} " in output
        assert entry.summary in output


def test_the_program_starts_without_tensorflow():
    code = (
        "import sys; from modelzoo.commands.main import main; code = main(['--help']); "
        "sys.exit(code or 'tensorflow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
