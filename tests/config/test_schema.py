"""Tests of config/schema.py: what is built, and what mistakes name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

import pytest

from cerebras_tf.config import schema
from cerebras_tf.config.schema import field
from tests.messages import names


@dataclass(frozen=True)
class Circle:
    kind: str
    radius: float


@dataclass(frozen=True)
class Square:
    kind: str
    side: int


@dataclass(frozen=True)
class Inner:
    num_hidden_layers: int = field(minimum=1)
    rate: float = 0.5
    names: list[str] = ("a",)
    color: Optional[str] = field(None, choices=("red", "green"))
    is_on: bool = False
    seed: Optional[int] = field(None, long=True)
    folder: Optional[str] = field(None, path="as given")
    patterns: tuple[str, ...] = field((), check=schema.regular_expressions)


@dataclass(frozen=True)
class Outer:
    inner: Inner
    shape: Any = field(
        None, build=schema.build_variant("kind", {"circle": Circle, "square": Square})
    )

    def problems(self):
        if self.inner.rate > 1:
            yield "inner", "must have a rate of at most 1."
        if self.inner.rate == 0:
            yield "inner.rate", "must be above 0."
            yield "inner.color", "must be given at a rate of 0."


def build(tree, lines=None, origins=None):
    report = schema.Report("f.yaml", lines, origins=origins)
    return schema.build(Outer, tree, report), report.messages


def test_build_gives_values_and_defaults():
    built, messages = build({"inner": {"num_hidden_layers": 3, "color": "red"}})
    assert messages == []
    assert built == Outer(Inner(3, 0.5, ("a",), "red", False))


def test_build_reads_numbers_written_as_text():
    built, _ = build(
        {"inner": {"num_hidden_layers": "1e1", "rate": "1e-6", "seed": str(2**53 + 1)}}
    )
    assert (built.inner.num_hidden_layers, built.inner.rate) == (10, 1e-6)
    assert built.inner.seed == 2**53 + 1


@pytest.mark.parametrize("value", ["１６", "٢٠", "1６", "1_0", " 16 ", "16\n"])
def test_numbers_as_text_are_ascii_digits(value):
    report = schema.Report("p.yaml")
    assert schema.convert(int, value, "size", report) is None
    assert schema.convert(float, value, "size", report) is None
    assert len(report.messages) == 2


def test_of_large_values_the_kind_is_told():
    value = ["x"]
    for _ in range(40):
        value = [value] * 9
    assert schema.shortened(value) == "a list of 9, too large to show"


@pytest.mark.parametrize(
    ("inner", "facts"),
    [
        ({"num_layers": 24}, ("inner.num_layers", "Did you mean inner.num_hidden_layers?", 24)),
        ({"zzz": 1}, ("Known keys: color, ",)),
        ({"num_hidden_layers": "many"}, ("an integer", "'many'")),
        ({"num_hidden_layers": 2.5}, ("an integer", 2.5)),
        ({"num_hidden_layers": True}, ("an integer", True)),
        ({"num_hidden_layers": 0}, ("at least 1", "Received: 0")),
        ({"num_hidden_layers": 10**30}, (f"below {2**31}", 10**30)),
        ({"rate": 1e300}, ("at most 3.4e+38", "1e+300")),
        ({"rate": [1]}, ("a finite number", "[1]")),
        *(({"rate": number}, ("a finite number",)) for number in ("nan", float("inf"), 10**400)),
        ({"is_on": "yes"}, ("true or false", "'yes'")),
        ({"names": "a"}, ("a list of strings", "'a'")),
        ({"color": "gren"}, ("one of red, green", "'gren'", "Did you mean green?")),
        ({"color": "x" * 10**6}, ("(1000002 characters)",)),
        ({"folder": "a\0b"}, ("null byte",)),
        ({"folder": ""}, ("a file or folder", "write null")),
        ({"patterns": ["("]}, ("regular expressions", "'('")),
    ],
)
def test_a_wrong_value_is_named_with_its_key_and_what_must_hold(inner, facts):
    built, (message,) = build({"inner": {"num_hidden_layers": 3, **inner}})
    assert built is None
    assert names(message, "f.yaml: ", f"inner.{next(iter(inner))}", "Received: ", *facts)
    assert len(message) < 600


def test_the_line_of_a_key_is_named_or_the_option_that_set_it():
    tree = {"inner": {"num_hidden_layers": 3, "rate": "x"}}
    _, (message,) = build(tree, {"inner.rate": 12})
    assert names(message, "f.yaml: inner.rate ", "Line 12.")
    _, (message,) = build(tree, {"inner.rate": 12}, {"inner": "--set inner"})
    assert names(message, "--set inner: inner.rate ") and "Line" not in message


def test_all_mistakes_are_collected():
    _, messages = build({"inner": {"rate": "x", "colour": 1}, "shapes": 2})
    assert len(messages) == 4
    assert names(messages, "inner.num_hidden_layers is required", "colour", "rate", "shapes")


def test_variant_is_picked_by_its_tag_and_checked_as_strictly():
    good = {"inner": {"num_hidden_layers": 1}}
    assert build({**good, "shape": {"kind": "square", "side": 2}})[0].shape == Square("square", 2)
    _, messages = build({**good, "shape": {"kind": "square", "radius": 2}})
    assert names(messages, "unknown key shape.radius")
    for kind in ("squar", ["square"], {"square": 1}):
        _, messages = build({**good, "shape": {"kind": kind}})
        assert names(messages, "shape.kind", "circle, square", kind)


def test_rules_between_keys_name_what_was_given_or_the_default():
    _, (message,) = build({"inner": {"num_hidden_layers": 1, "rate": 2}})
    assert names(message, "f.yaml: inner must have a rate of at most 1.")
    _, messages = build({"inner": {"num_hidden_layers": 1, "rate": "0.0"}})
    assert messages == [
        "f.yaml: inner.rate must be above 0. Received: '0.0'.",
        "f.yaml: inner.color must be given at a rate of 0. Received: None.",
    ]


def test_as_tree_is_the_inverse_of_build():
    built, _ = build(
        {"inner": {"num_hidden_layers": 1}, "shape": {"kind": "circle", "radius": 1.5}}
    )
    again, messages = build(schema.as_tree(built))
    assert messages == [] and again == built


def test_a_mistake_that_a_section_inherits_is_reported_once():
    report = schema.Report("f.yaml", {"train.size": 1, "eval.size": 5})
    for section in ("train", "eval", "predict"):
        report.add(f"{section}.size", f"{section}.size must be an integer.", "x")
    assert report.text().count("\n") == 1 and names(report.text(), "Line 1", "Line 5")
    report = schema.Report("f.yaml", {"train": 1, "eval": 5})
    for section in ("train", "eval"):
        report.add(f"{section}.folder", f"{section}.folder is required.")
    assert report.text().count("is required") == 2
