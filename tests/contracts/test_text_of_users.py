"""Users' text is split by modelzoo/common/files only: not at U+2028, U+00A0 and the like.

`str.splitlines` ends lines at form feeds, U+0085 and U+2028, and `str.split()` ends words at
no-break and ideographic spaces. Files that are opened as text have other line ends than those that
are read as bytes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

# What these folders read is data of users; the others read their own files.
READERS = (
    "modelzoo/bert/",
    "modelzoo/gpt3/",
    "modelzoo/gptj/",
    "modelzoo/transformer/",
    *(f"modelzoo/common/{name}/" for name in ("data", "evaluate", "files", "generate")),
    *(f"modelzoo/common/{name}/" for name in ("metrics", "tokenizers")),
)
LINES = {"splitlines", "readline", "readlines"}
# Where white space of any kind separates, by definition.
ALLOWED = {
    ("modelzoo/common/metrics/squad.py", "split"): "the official evaluation script",
    ("modelzoo/common/files/text_sources.py", "readline"): "of bytes, which LF ends",
    ("modelzoo/common/files/text_sources.py", "csv"): "the reader of CSV",
    ("modelzoo/common/files/text_sources.py", "for"): "files of an archive",
}


def is_open(node: ast.AST | None) -> bool:
    """Does a node open a file?"""
    call = isinstance(node, ast.Call) and node.func
    return bool(call) and getattr(call, "attr", getattr(call, "id", "")) == "open"


def found_in(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yields the lines and names of calls that split text by rules of Python."""
    opened = [item for node in ast.walk(tree) for item in getattr(node, "items", [])]
    names = [item.optional_vars for item in opened if is_open(getattr(item, "context_expr", None))]
    files = {getattr(name, "id", "") for name in names} | {"file"}
    for node in ast.walk(tree):
        looped = getattr(node, "iter", None)  # of statements and comprehensions
        if getattr(looped, "id", "") in files or is_open(looped):
            yield looped.lineno, "for"
        if isinstance(node, ast.Import) and node.names[0].name == "csv":
            yield node.lineno, "csv"
        if isinstance(node, ast.Attribute) and node.attr in LINES:
            yield node.lineno, node.attr
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        if name in ("split", "rsplit") and isinstance(node.func, ast.Attribute):
            separators = [*node.args[:1], *([given["sep"]] if "sep" in given else [])]
            if all(isinstance(s, ast.Constant) and s.value is None for s in separators):
                yield node.lineno, name
        mode = [*node.args[1:2], *([given["mode"]] if "mode" in given else [])]
        mode = mode[0].value if mode and isinstance(mode[0], ast.Constant) else "r"
        plain = name == "open" and isinstance(node.func, ast.Name)
        if plain and mode == "r" and "newline" not in given:
            yield node.lineno, "open"


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("text.splitlines()", ["splitlines"]),
        ("map(str.splitlines, texts)", ["splitlines"]),
        ("line.split()", ["split"]),
        ("line.rsplit(None, 1)", ["rsplit"]),
        ("line.rsplit(maxsplit=1)", ["rsplit"]),
        ("line.split('\\t')", []),
        ("split(text)", []),
        ("open(path, encoding='utf-8')", ["open"]),
        ("open(path, 'rb'); open(path, 'w'); open(path, newline='')", []),
        ("for line in file: pass", ["for"]),
        ("[line for line in file]", ["for"]),
        ("with open(p, 'rb') as f: return list(x for x in f)", ["for"]),
        ("for line in Path(p).open('rb'): pass", ["for"]),
        ("import csv", ["csv"]),
    ],
)
def test_splitting_by_rules_of_python_is_found(code, names):
    assert [name for _, name in found_in(ast.parse(code))] == names


def test_data_are_split_by_the_readers_of_the_project_only(sources):
    faults, used = [], set()
    for source in sources:
        splitter = source.path.endswith(("files/text_lines.py", "__init__.py"))
        if not source.path.startswith(READERS) or splitter:
            continue
        for line, name in found_in(source.tree):
            used.add((source.path, name))
            if (source.path, name) not in ALLOWED:
                faults.append(f"{source.path}:{line}: {name}, use modelzoo/common/files")
    assert not faults, "\n".join(faults)
    assert set(ALLOWED) <= used
