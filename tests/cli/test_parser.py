"""Checks what the parser of all commands says of mistakes, and which defaults its help shows."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from cerebras_tf.cli.parser import Parser, format_rows


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
    return made


def mistake(parser, capsys, *words):
    """What the parser prints of a wrong command line, line breaks as spaces."""
    with pytest.raises(SystemExit) as stop:
        parser.parse_args(words)
    assert stop.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return " ".join(captured.err.split())


def test_several_unknown_options_are_told_before_a_missing_one(parser, capsys):
    assert mistake(parser, capsys, "--colour", "red", "--sise=4") == (
        "tool: unknown option --colour. Did you mean --color? "
        "unknown option --sise. Did you mean --size? See tool -h."
    )


def test_an_option_like_no_other_gets_no_suggestion(parser, capsys):
    assert mistake(parser, capsys, "--xyz") == "tool: unknown option --xyz. See tool -h."


def test_a_value_that_begins_with_a_dash_is_named(parser, capsys):
    assert mistake(parser, capsys, "--color", "red", "--size", "-1days") == (
        "tool: argument --size: a value that begins with a dash must stand behind an equals sign. "
        "Received: '-1days'. Write --size=-1days, if that is meant. See tool -h."
    )
    assert "expected one argument" in mistake(parser, capsys, "--name", "--color", "red")
    assert "expected one argument" in mistake(parser, capsys, "--color", "red", "--name")
    for words in (["--name=-x", "--size", "-1"], ["--name", "-", "--size=-1"]):
        assert parser.parse_args(["--color", "red", *words]).size == -1


def test_an_unknown_choice_is_told_with_all_and_the_nearest(parser, capsys):
    assert mistake(parser, capsys, "--color", "gren") == (
        "tool: argument --color: must be one of red, green. Received: 'gren'. "
        "Did you mean green? See tool -h."
    )


def test_arguments_too_many_and_beginnings_of_options_are_refused(parser, capsys):
    told = mistake(parser, capsys, "--color", "red", "more")
    assert told == "tool: unknown argument more. See tool -h."
    assert "unknown option --siz." in mistake(parser, capsys, "--color", "red", "--siz", "4")


def test_values_that_look_like_options_come_behind_an_equals_sign_or_a_dash():
    parser = Parser(prog="tool")
    parser.add_argument("--mark")
    parser.add_argument("words", nargs="*")
    args = parser.parse_args(["--mark=--size", "--", "--other"])
    assert (args.mark, args.words) == ("--size", ["--other"])


@pytest.mark.parametrize("words", [("--name", ""), ("--name=",), ("--folder", "")])
def test_empty_paths_and_names_are_refused(parser, capsys, words):
    """A shell variable that is not set leaves them; nothing would be done with them, unsaid."""
    parser.add_argument("--folder", type=Path)
    told = mistake(parser, capsys, "--color", "red", *words)
    name = words[0].rstrip("=")
    assert told == (
        f"tool: argument {name}: must not be empty. Received: ''. Name one, or leave it out. "
        "See tool -h."
    )
    parser.add_argument("file", nargs="+")
    assert "argument file: must not be empty. Received: ''. Name one. See" in mistake(
        parser, capsys, "--color", "red", "a", ""
    )


@pytest.mark.parametrize("words", [("--name", "bad\udcff"), ("--name=bad\udcff",)])
def test_paths_that_are_no_utf_8_are_refused(parser, capsys, words):
    told = mistake(parser, capsys, "--color", "red", *words)
    assert "argument --name: must be UTF-8 text. Received: b'bad\\xff'. Rename it." in told


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


def test_a_type_that_refuses_is_told_as_it_says(capsys):
    def odd(text):
        raise argparse.ArgumentTypeError("must be odd. Received: 2.")

    parser = Parser(prog="tool")
    parser.add_argument("--number", type=odd)
    assert mistake(parser, capsys, "--number", "2") == (
        "tool: argument --number: must be odd. Received: 2. See tool -h."
    )
