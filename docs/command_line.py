"""Writes the page of all commands of ``cerebras-tf`` from their argument parsers."""

from __future__ import annotations

import contextlib
import io
import os
from pathlib import Path

HEAD = """\
# Command line

`cerebras-tf` has the commands on this page. In a checkout, run `scripts/cerebras-tf` instead.
`--debug` shows the traceback of an error. [Errors](errors.md#exit-codes) lists the exit codes.
"""


def write_page(folder: Path) -> None:
    """Writes ``cli.md`` into a folder."""
    from modelzoo.commands import main as program

    os.environ["COLUMNS"] = "90"
    parts = [HEAD]
    for words, command in commands(program.ROOT):
        text = help_of(program, words)
        level = "##" if len(words) == 1 else "###"
        parts.append(f"\n{level} {' '.join(words)}\n\n")
        parts.append(f"{program.sentence(command.summary)}\n")
        if not command.commands:
            parts.append(f"\n```text\n{text.rstrip()}\n```\n")
    text = "".join(parts)
    page = folder / "cli.md"
    if not page.exists() or page.read_text(encoding="utf-8") != text:
        page.write_text(text, encoding="utf-8")


def commands(group, words=()):
    """Yields (words, command) for every command and group of commands."""
    for name, command in group.commands.items():
        yield (*words, name), command
        yield from commands(command, (*words, name))


def help_of(program, words) -> str:
    """Returns what a command prints with ``-h``."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        program.main([*words, "-h"])
    return out.getvalue()
