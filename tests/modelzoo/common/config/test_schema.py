"""Tests of modelzoo/common/config/schema.py: what is built, and how mistakes are worded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

import pytest

from modelzoo.common.config import schema
from modelzoo.common.config.sections import field


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


def build(tree, lines=None):
    report = schema.Report("f.yaml", lines)
    return schema.build(Outer, tree, report), report.messages


def test_build_gives_values_and_defaults():
    built, messages = build({"inner": {"num_hidden_layers": 3, "color": "red"}})
    assert messages == []
    assert built == Outer(Inner(3, 0.5, ("a",), "red", False))


def test_build_reads_numbers_written_as_text():
    built, _ = build({"inner": {"num_hidden_layers": "1e1", "rate": "1e-6"}})
    assert built.inner.num_hidden_layers == 10 and built.inner.rate == 1e-6


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


def test_unknown_key_names_line_and_likeliest_key():
    _, messages = build(
        {"inner": {"num_hidden_layers": 3, "num_layers": 24}}, {"inner.num_layers": 12}
    )
    assert messages == [
        "f.yaml: unknown key inner.num_layers. Did you mean inner.num_hidden_layers? "
        "Received: 24. Line 12."
    ]


def test_unknown_key_unlike_any_lists_the_known_ones():
    _, messages = build({"inner": {"num_hidden_layers": 3, "zzz": 1}})
    assert "Known keys: color, is_on, names, num_hidden_layers, rate." in messages[0]


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("num_hidden_layers", "many", "must be a whole number. Received: 'many'."),
        ("num_hidden_layers", 2.5, "must be a whole number. Received: 2.5."),
        ("num_hidden_layers", True, "must be a whole number. Received: True."),
        ("num_hidden_layers", 0, "must be at least 1. Received: 0."),
        (
            "num_hidden_layers",
            10**30,
            f"must be below {2**31}: it is a number of 32 bits. Received: {10**30}.",
        ),
        ("rate", 1e300, "must be at most 3.4e+38, as float32 has it. Received: 1e+300."),
        ("rate", [1], "must be a finite number. Received: [1]."),
        ("is_on", "yes", "must be true or false. Received: 'yes'."),
        ("names", "a", "must be a list of texts. Received: 'a'."),
        ("color", "gren", "must be one of red, green. Received: 'gren'. Did you mean green?"),
    ],
)
def test_wrong_value_is_said_with_key_rule_and_value(key, value, words):
    built, messages = build({"inner": {"num_hidden_layers": 3, key: value}})
    assert built is None
    assert messages == [f"f.yaml: inner.{key} {words}"]


def test_all_mistakes_are_collected():
    _, messages = build({"inner": {"rate": "x", "colour": 1}, "shapes": 2})
    assert len(messages) == 4  # colour, num_hidden_layers missing, rate, shapes
    assert any("inner.num_hidden_layers is required" in message for message in messages)


def test_variant_is_picked_by_its_tag_and_checked_as_strictly():
    good = {"inner": {"num_hidden_layers": 1}}
    assert build({**good, "shape": {"kind": "square", "side": 2}})[0].shape == Square("square", 2)
    _, messages = build({**good, "shape": {"kind": "square", "radius": 2}})
    assert any("unknown key shape.radius" in message for message in messages)
    _, messages = build({**good, "shape": {"kind": "squar"}})
    assert "must be one of circle, square" in messages[0] and "square?" in messages[0]
    for kind in (["square"], {"square": 1}):
        _, messages = build({**good, "shape": {"kind": kind}})
        assert "must be one of circle, square" in messages[0]


def test_rules_between_fields_are_reported_with_their_key():
    _, messages = build({"inner": {"num_hidden_layers": 1, "rate": 2}})
    assert messages[0].startswith("f.yaml: inner must have a rate of at most 1.")


def test_rules_on_keys_of_inner_sections_tell_what_was_given_or_the_default():
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


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "nan", "-inf", 10**400])
def test_numbers_that_are_not_finite_are_refused(value):
    built, (message,) = build({"inner": {"num_hidden_layers": 1, "rate": value}})
    assert built is None
    assert message.startswith("f.yaml: inner.rate must be a finite number. Received: ")


def test_long_values_are_shortened():
    _, messages = build({"inner": {"num_hidden_layers": 1}, "more": "x" * 10**6})
    assert "(1000002 characters)" in messages[0] and len(messages[0]) < 500
