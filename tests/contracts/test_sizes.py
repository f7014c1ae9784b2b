"""How long a function and a line may be, and which file names say nothing."""

from __future__ import annotations

import ast

MAX_FUNCTION_LINES = 60
MAX_LINE_COLUMNS = 100
SAYS_NOTHING = {"utils.py", "helpers.py", "misc.py", "common.py"}


def shell_scripts(root):
    """The launchers and what they share, with their texts."""
    for path in [*(root / "scripts").iterdir(), *(root / ".ci").iterdir()]:
        if path.is_file() and path.read_bytes().startswith((b"#!/usr/bin/env bash", b"# ")):
            yield path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")


def test_functions_have_at_most_60_lines(sources):
    faults = []
    for source in sources:
        for node in ast.walk(source.tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                lines = node.end_lineno - node.lineno + 1
                if lines > MAX_FUNCTION_LINES:
                    faults.append(f"{source.path}:{node.lineno}: {node.name} has {lines} lines")
    assert not faults, "\n".join(faults)


def test_lines_have_at_most_100_columns(sources, root):
    texts = [(source.path, source.text) for source in sources]
    texts += [item for item in shell_scripts(root) if not item[0].endswith(".lock")]
    faults = [
        f"{path}:{number}: {len(line)} columns"
        for path, text in texts
        for number, line in enumerate(text.splitlines(), start=1)
        if len(line) > MAX_LINE_COLUMNS
    ]
    assert not faults, "\n".join(faults)


def test_no_file_of_the_package_has_a_name_that_says_nothing(sources):
    named = [s.path for s in sources if s.path.rpartition("/")[2] in SAYS_NOTHING]
    assert [path for path in named if path.startswith("cerebras_tf/")] == []
