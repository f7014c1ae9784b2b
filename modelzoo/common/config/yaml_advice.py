"""What to do about a text that is no YAML, as the words of PyYAML's errors tell."""

from __future__ import annotations

import re

import yaml

# What the error says, its context first, and what to do; LINE is where the context begins.
_ADVICE = (
    (r"'\\t' that cannot start", "Indent with spaces: YAML takes no tabs there"),
    (r"that cannot start any token", "Put the value in quotes"),
    (r"flow (sequence|mapping): expected ','", "Close the bracket that line LINE opens"),
    (r"escape", "Write \\\\ for a backslash, or use single quotes"),
    (r"quoted scalar", "Close the quote that line LINE opens"),
    (
        r"mapping values are not",
        "Indent the keys of a section alike, and put a value with a colon and a blank in quotes",
    ),
    (r"expected ':'", "Write `key: value`, with a colon and a blank behind the key"),
    (
        r"but found '(<block .*|\?|-)'",
        "Indent the keys of a section alike, and the items of a list",
    ),
    (r"but found '<scalar>'", "Put the whole value in quotes, and write '' for a quote in it"),
    (r"but found '[\]},]'", "Remove the bracket or comma, or put the value in quotes"),
    (r"duplicate anchor", "Give each anchor (&) its own name"),
    (r"alias|an anchor|the tag|a tag", "Put a text that begins with *, & or ! in quotes"),
    (r"sequence entries", "Begin the list on a line of its own, or write [a, b]"),
    (r"another document", "Remove the line ---, or what follows it"),
    (r"unhashable key", "Put a text that begins with { or [ in quotes"),
    (r"block scalar", "Put a text that begins with | or > in quotes"),
    (r"unacceptable character", "Remove the character, or name a text file"),
    (r" is no \w+$", "Correct it, or put a text in quotes"),
)
# What PyYAML counts as the end of a line; the text was read with \n for others.
_LINE_END = re.compile("[\n\x85\u2028\u2029]")
_NO_BLANK = re.compile(r"\s*[A-Za-z_]\w*:(?!//)[^\s:]")
_OTHERWISE = "Check indentation, colons, brackets and quotes of this line and those above it"


def advice_on_yaml(error):
    """Returns what a yaml.YAMLError says, without its place, and what to do: two sentences."""
    context, problem = getattr(error, "context", None), getattr(error, "problem", None)
    problem = problem or " ".join(str(error).split())
    whole = f"{context}: {problem}" if context else problem
    advice = next((do for words, do in _ADVICE if re.search(words, whole)), _OTHERWISE)
    if _unspaced(error) is not None:
        advice = "Put a blank behind the colon of the key"
    elif "'\\t' that cannot" in problem and _line(error.problem_mark).strip():
        advice = "Write a blank in place of the tab: YAML takes none there"
    mark = getattr(error, "context_mark", None)
    advice = advice.replace("LINE", str(mark.line + 1) if mark else "above")
    is_half = isinstance(error, yaml.composer.ComposerError)  # "but found another document"
    return f"{whole if is_half else problem}. {advice}."


def line_of(error):
    """Returns the number of the line to look at; None where the error has none."""
    unspaced = _unspaced(error)
    if unspaced is not None:
        return unspaced + 1
    mark = getattr(error, "problem_mark", None)
    if getattr(error, "context", None) == "while scanning a simple key":
        mark = error.context_mark  # its colon was looked for up to the problem's line
    return mark.line + 1 if mark else None


def _unspaced(error):
    """Returns the number, from 0 on, of a line before the error whose colon has no blank behind it.

    What follows is then read as more of its text, up to the next colon.
    """
    problem, mark = getattr(error, "problem", None) or "", getattr(error, "problem_mark", None)
    if (
        mark is None
        or mark.buffer is None
        or not re.search("mapping values are not|expected ':'", problem)
    ):
        return None
    lines = _LINE_END.split(mark.buffer)
    above = (number for number in (mark.line - 1, mark.line - 2) if number >= 0)
    return next((number for number in above if _NO_BLANK.match(lines[number])), None)


def _line(mark):
    """Returns what stands before a mark in its line."""
    return _LINE_END.split(mark.buffer[: mark.pointer])[-1]
