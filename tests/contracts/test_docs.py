"""What is written is there and true: docstrings, links, paths, printed commands, and no strays.

Whether the prose is any good is for a reader to judge.
"""

from __future__ import annotations

import ast
import os
import re
import shlex

import pytest

PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")
CODE = re.compile(r"`([^`\n]+)`")
PATH = re.compile(r"(?:cerebras_tf|modelzoo|benchmarks|configs|scripts|tests|\.ci)/[\w./-]*\w/?")
FENCE = re.compile(r"^```[^\n]*\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)
# Written in halves, so that this file does not find itself.
STRAYS = [
    re.compile(pattern)
    for pattern in (
        r"/wor" + r"k/",
        r"/roo" + r"t/",
        r"/home/" + r"\w",
        r"/Users/" + r"\w",
        r"/tmp/" + r"(brief|try)\b",
        r"https?://[^\s/]*(pypi|pythonhosted|artifactory|nexus)" + r"\b",
        r"(?i)\b(issue|session) #?" + r"\d+\b",
    )
]


# Made when the site is built, or there from the start of a later build.
GENERATED = ("cli.md",)


def pages(root):
    """The pages of the top level, of docs/ and next to models, with their texts."""
    found = [root / name for name in PAGES if (root / name).exists()]
    for pattern in ("docs/**/*.md", "modelzoo/**/README.md"):
        found += sorted(path for path in root.glob(pattern) if "_build" not in path.parts)
    found = [path for path in found if path.name not in GENERATED]
    return [(path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")) for path in found]


def is_public(name: str) -> bool:
    """Is the name meant for others?"""
    return not name.startswith("_")


def test_modules_have_docstrings(sources):
    missing = [s.path for s in sources if s.text.strip() and not ast.get_docstring(s.tree)]
    assert missing == []


def test_public_functions_and_classes_have_docstrings(sources):
    faults = []
    for source in sources:
        if source.path.startswith("tests/"):
            continue
        for node in source.tree.body:
            kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
            if isinstance(node, kinds) and is_public(node.name) and not ast.get_docstring(node):
                faults.append(f"{source.path}:{node.lineno}: {node.name}")
    assert not faults, "\n".join(faults)


def test_links_in_pages_lead_to_files(root):
    faults = []
    for name, text in pages(root):
        folder = (root / name).parent
        for target in LINK.findall(text):
            if target.endswith(GENERATED):
                continue
            if "://" not in target and not (folder / target).exists():
                faults.append(f"{name}: {target}")
    assert not faults, "\n".join(faults)


def test_paths_in_pages_exist(root):
    faults = []
    for name, text in pages(root):
        for code in CODE.findall(FENCE.sub("", text)):
            if PATH.fullmatch(code) and not (root / code).exists():
                faults.append(f"{name}: {code}")
    assert not faults, "\n".join(faults)


def printed_commands(text: str):
    """The words of every command in a page's code blocks that starts with a script of ours."""
    for block in FENCE.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            command = line.strip().removeprefix("$ ").removeprefix("python ")
            if command.startswith("scripts/"):
                yield shlex.split(command, comments=True)


def test_commands_in_pages_name_programs_and_files_that_exist(root):
    faults = []
    for name, text in pages(root):
        for words in printed_commands(text):
            if not os.access(root / words[0], os.X_OK):
                faults.append(f"{name}: {words[0]} is no program")
            faults += [
                f"{name}: {word} is missing"
                for word in words[1:]
                if PATH.fullmatch(word) and not (root / word).exists()
            ]
    assert not faults, "\n".join(faults)


def test_scripts_with_an_interpreter_line_can_be_run(root):
    scripts = [path for path in (root / "scripts").iterdir() if path.is_file()]
    scripts = [path for path in scripts if path.read_bytes().startswith(b"#!")]
    assert scripts
    assert [path.name for path in scripts if not os.access(path, os.X_OK)] == []


@pytest.mark.parametrize("pattern", STRAYS, ids=lambda pattern: pattern.pattern)
def test_no_file_names_a_machine_or_a_workplace(pattern, root, tracked):
    faults = []
    for path in tracked:
        try:
            text = (root / path).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), start=1):
            if pattern.search(line):
                faults.append(f"{path}:{number}: {line.strip()[:80]}")
    assert not faults, "\n".join(faults)
