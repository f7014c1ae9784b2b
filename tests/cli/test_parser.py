"""Tests of the parser of all commands: how mistakes are reported, and which defaults help shows."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from cerebras_tf.cli.parser import Parser, format_rows, gigabytes, positive_int, seed_int, step_int
from tests.messages import names


def odd(text):
    raise argparse.ArgumentTypeError(f"must be odd. Received: {text}.")


@pytest.fixture
def parser():
    """A parser with an option of each kind."""
    made = Parser(prog="tool")
    made.add_argument("--size", type=int, default=3, help="how large")
    made.add_argument("--color", choices=("red", "green"), required=True, help="which color")
    made.add_argument("--name", help="what it is called")
    made.add_argument("--prefix", default="", help="what it starts with")
    made.add_argument("--count", default=1, help="how many (default: one)")
    made.add_argument("--quiet", action="store_true", help="say less")
    made.add_argument("--loud", dest="quiet", action="store_false", help="say more")
    made.add_argument("--folder", type=Path)
    made.add_argument("--number", type=odd)
    return made


def mistake(parser, capsys, *words):
    """What the parser prints of a wrong command line, line breaks as spaces."""
    with pytest.raises(SystemExit) as stop:
        parser.parse_args(words)
    assert stop.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return " ".join(captured.err.split())


RED = ("--color", "red")


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        (("--colour", "red", "--sise=4"), ("Did you mean --color?", "--sise", "--size?")),
        (("--xyz",), ("unknown option --xyz. See",)),
        ((*RED, "--size", "-1days"), ("--size", "'-1days'", "--size=-1days")),
        (("--name", *RED), ("--name", "expected one argument")),
        ((*RED, "--name"), ("--name", "expected one argument")),
        (("--color", "gren"), ("--color", "red, green", "'gren'", "Did you mean green?")),
        ((*RED, "more"), ("unknown argument more",)),
        ((*RED, "--siz", "4"), ("unknown option --siz.",)),
        # A shell variable that is not set leaves an empty argument.
        ((*RED, "--name", ""), ("--name", "Received: ''")),
        ((*RED, "--name="), ("--name", "Received: ''")),
        ((*RED, "--folder", ""), ("--folder", "Received: ''")),
        ((*RED, "--name", "bad\udcff"), ("--name", r"b'bad\xff'")),
        ((*RED, "--number", "2"), ("--number", "must be odd. Received: 2.")),
    ],
)
def test_a_mistake_is_one_paragraph_with_what_was_meant(parser, capsys, words, facts):
    shown = mistake(parser, capsys, *words)
    assert names(shown, *facts) and shown.startswith("tool: ") and shown.endswith(" See tool -h.")


def test_values_may_begin_with_a_dash_where_they_are_numbers_or_follow_an_equals_sign(parser):
    for words in (["--name=-x", "--size", "-1"], ["--name", "-", "--size=-1"]):
        assert parser.parse_args([*RED, *words]).size == -1


def test_values_that_look_like_options_come_behind_an_equals_sign_or_a_dash():
    parser = Parser(prog="tool")
    parser.add_argument("--mark")
    parser.add_argument("words", nargs="*")
    args = parser.parse_args(["--mark=--size", "--", "--other"])
    assert (args.mark, args.words) == ("--size", ["--other"])


def test_a_text_may_be_empty_where_that_is_said():
    parser = Parser(prog="tool")
    parser.add_argument("--mark", type=str)
    assert parser.parse_args(["--mark", ""]).mark == ""


def test_help_shows_defaults_only_where_they_tell_something(parser):
    text = parser.format_help()
    assert "how large (default: 3)" in text
    assert text.count("(default") == 2  # the other is written by hand


def test_rows_are_aligned():
    assert format_rows({"a": "one", "long": "two"}) == "  a     one\n  long  two"


@pytest.mark.parametrize(
    ("parse", "wrong", "right"),
    [
        (positive_int, 2**31, 2**31 - 1),
        (step_int, 2**63, 2**63 - 1),
        (seed_int, -1, 0),
        (seed_int, 2**32, 2**32 - 1),
        (gigabytes, 1e308, 0.5),
    ],
)
def test_numbers_beyond_what_is_computed_with_are_refused(parse, wrong, right):
    assert parse(str(right)) == right
    with pytest.raises(argparse.ArgumentTypeError, match="must be"):
        parse(str(wrong))
