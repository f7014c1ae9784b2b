"""The Dockerfile installs locked packages and the checkout, and runs as a user without rights."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_image_is_that_of_the_checkout_for_an_ordinary_user():
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    steps = [line.split(maxsplit=1) for line in text.splitlines() if line and line[0].isupper()]
    assert steps[0] == ["FROM", "python:3.13-slim"]
    assert [value for key, value in steps if key == "USER"] == ["cerebras"]
    assert [key for key, _ in steps][-4:] == ["USER", "WORKDIR", "ENTRYPOINT", "CMD"]
    copied = [value.split()[0] for key, value in steps if key == "COPY"]
    assert copied == ["scripts/requirements.lock", "."]
    installs = [value for key, value in steps if key == "RUN" and value.startswith("pip")]
    assert all("--no-deps" in command for command in installs)  # the lock has all
    assert "--require-hashes" in installs[0] and "requirements.lock" in installs[0]
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert ".git" in ignored and not {"scripts", "configs", "README.md"} & set(ignored)


def test_the_documented_commands_are_those_of_the_dockerfile():
    file = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    page = (ROOT / "docs" / "getting-started.md").read_text(encoding="utf-8")
    for command in re.findall(r"^# +(docker .*?)(?: \\)?$", file, flags=re.MULTILINE):
        assert command in page
