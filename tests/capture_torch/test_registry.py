"""The table of rules: every op exists, every argument is read or has its default."""

from __future__ import annotations

import inspect
import operator
import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is an extra")

import cerebras_tf
from cerebras_tf.capture_torch import export, registry  # noqa: F401  # registers the rules

RENAMED = {"self": "x", "input": "x"}


def schema(name):
    return operator.attrgetter(name)(torch.ops)._schema


@pytest.mark.parametrize("name", sorted(registry.RULES))
def test_a_rule_reads_the_arguments_without_default(name):
    rule = registry.RULES[name]
    arguments = schema(name).arguments
    names = {RENAMED.get(argument.name, argument.name) for argument in arguments}
    needed = {
        RENAMED.get(argument.name, argument.name)
        for argument in arguments
        if not argument.has_default_value() and argument.name not in registry.NO_EFFECT
    }
    assert needed <= set(registry.reads(rule))
    # Parameters that only other overloads have need a default.
    own = inspect.signature(rule).parameters
    assert {
        key for key in registry.reads(rule) if own[key].default is inspect.Parameter.empty
    } <= names


def test_private_names_of_torch_are_in_one_file():
    private = re.compile(r"torch(\.\w+)*\._[a-z]|torch\.fx\.experimental|\._schema")
    faults = [
        path.name
        for path in Path(cerebras_tf.__file__).parent.rglob("*.py")
        if private.search(path.read_text(encoding="utf-8")) and path.name != "internals.py"
    ]
    assert not faults
