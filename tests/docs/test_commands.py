"""Every command of `cerebras-tf` that a page shows is one that its parser takes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from modelzoo.commands import main as program

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^```(?:bash)?\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)
PAGES = [ROOT / "README.md"] + sorted(
    path for path in (ROOT / "docs").rglob("*.md") if "_build" not in path.parts
)


def commands():
    """(page, words after `cerebras-tf`) of every command that a page shows."""
    for page in PAGES:
        for block in FENCE.findall(page.read_text(encoding="utf-8")):
            variables = dict(re.findall(r'^([A-Z]+)="([^"]*)"$', block, flags=re.MULTILINE))
            for line in block.replace("\\\n", " ").splitlines():
                for name, value in variables.items():
                    line = line.replace(f"${name}", value.replace("\\", ""))
                if line.strip().startswith("cerebras-tf "):
                    words = shlex.split(re.split(r" 2?> ", line)[0], comments=True)
                    yield page.relative_to(ROOT).as_posix(), words[1:]


def parse(words):
    """Parses the words of a command and runs nothing.

    Raises:
        SystemExit: there is no such command, or it has no such argument.
    """
    command, name = program.ROOT, program.PROGRAM
    while command.commands:
        chosen = program.choose(words, name, command)
        command, name, words = command.commands[chosen], f"{name} {chosen}", words[1:]
    module = program.importlib.import_module(command.module)
    parser = program.Parser(prog=name)
    module.add_arguments(parser, **command.given)
    parser.parse_args(words)


@pytest.mark.parametrize(
    ("page", "words"), list(commands()), ids=lambda value: str(value)[:60] if value else "none"
)
def test_command_on_a_page_is_accepted(page, words):
    try:
        parse(words)
    except SystemExit as end:
        assert not end.code or words == ["--help"], f"{page}: cerebras-tf {shlex.join(words)}"


def test_every_copied_config_exists():
    for page, words in commands():
        if words[:2] == ["configs", "copy"]:
            for name in words[2:]:
                assert (ROOT / "configs" / f"params_{name}.yaml").exists(), (page, name)


def test_every_params_file_is_copied_on_its_page_or_is_the_readers_own():
    of_pages = {}
    for page, words in commands():
        if words[:2] == ["configs", "copy"]:
            of_pages.setdefault(page, set()).update(f"params_{name}.yaml" for name in words[2:])
    for page, words in commands():
        if "-p" in words:
            name = words[words.index("-p") + 1]
            known = of_pages.get(page, set()) | of_pages["docs/getting-started.md"]
            assert name in known or not (ROOT / "configs" / name).exists(), (page, name)
