"""The argument parser of all commands. A mistake is reported in a paragraph, with a suggestion.

Abbreviated options are errors, because they would change their meaning when an option is added. The
functions at the end are types of arguments.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from cerebras_tf.cli.exit_codes import USER_ERROR, format_error
from cerebras_tf.config.schema import number_of as any_number
from cerebras_tf.quantities import MAX_GB
from cerebras_tf.suggestions import did_you_mean

_WHOLE_NUMBER = re.compile(r"[-+]?[0-9]{1,1000}")


def format_rows(texts: Mapping[str, str]) -> str:
    """Returns an aligned line for each name and its text, for the end of a help."""
    width = max(map(len, texts))
    return "\n".join(f"  {name:<{width}}  {text}" for name, text in texts.items())


def _optional(action: argparse.Action) -> bool:
    return bool(action.option_strings) and not action.required


def _is_text(word: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in word)


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Keeps the line breaks of descriptions, and shows informative defaults."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        is_shown = action.nargs != 0 and action.default not in (None, "", [], argparse.SUPPRESS)
        return (
            f"{text} (default: %(default)s)".lstrip()
            if is_shown and "default" not in text
            else text
        )


class Parser(argparse.ArgumentParser):
    """An `argparse.ArgumentParser` that ends with status 2 and a paragraph at a mistake.

    Unlike argparse's, its `parse_known_args` refuses unknown arguments. Paths and names (arguments
    without a `type` or with the type Path) must be UTF-8 and must not be empty, as an unset shell
    variable would make them; `type=str` accepts any text.
    """

    def __init__(self, **settings: Any) -> None:
        """Accepts the arguments of argparse.ArgumentParser."""
        super().__init__(allow_abbrev=False, **{"formatter_class": HelpFormatter, **settings})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parses all arguments; see the class."""
        words = list(sys.argv[1:] if args is None else args)
        # This comes first, because a misspelled option also makes a required one missing.
        options = list(itertools.takewhile(lambda word: word != "--", words))
        names = (word.partition("=")[0] for word in options if word.startswith("--"))
        self._refuse_unknown([name for name in names if name not in self._option_string_actions])
        self._refuse_dashes(options)
        namespace, left = super().parse_known_args(words, namespace)
        self._refuse_unknown(left)
        return namespace, left

    def error(self, message: str) -> NoReturn:
        """Prints the mistake and a hint at the help, and exits."""
        text = f"{message.rstrip('.?')}{'?' if message.endswith('?') else '.'} "
        text += f"See {self.prog} -h."
        width = shutil.get_terminal_size().columns
        self.exit(USER_ERROR, format_error(text, self.prog, width) + "\n")

    def _refuse_unknown(self, words: Sequence[str]) -> None:
        mistakes = []
        for word in words:
            kind = "option" if word.startswith("-") else "argument"
            hint = did_you_mean(word, self._option_string_actions) if kind == "option" else ""
            mistakes.append(f"unknown {kind} {word}. {hint}".rstrip())
        if mistakes:
            self.error(" ".join(mistakes))

    def _refuse_dashes(self, words: Sequence[str]) -> None:
        """Reports a value that argparse would read as an option because it begins with a dash."""
        known = self._option_string_actions
        for option, value in itertools.pairwise(words):
            action = known.get(option)
            if action is None or action.nargs not in (None, "+"):
                continue
            if self._parse_optional(value) is not None and value.partition("=")[0] not in known:
                self.error(
                    f"argument {'/'.join(action.option_strings)}: a value that begins with a dash "
                    f"must follow an equals sign. Received: {value!r}. Write "
                    f"{max(action.option_strings, key=len)}={value}, if that is meant"
                )

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        names = action.choices is None and action.type in (None, Path)
        if names and "" in arg_strings:
            advice = " Name one, or remove it." if _optional(action) else " Name one."
            raise argparse.ArgumentError(action, f"must not be empty. Received: ''.{advice}")
        # Python decodes bytes that are not UTF-8 as lone surrogates.
        wrong = [word for word in arg_strings if names and not _is_text(word)]
        if wrong:
            text = f"must be UTF-8 text. Received: {os.fsencode(wrong[0])!r}. Rename it."
            raise argparse.ArgumentError(action, text)
        return super()._get_values(action, arg_strings)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        names = list(map(str, action.choices))
        hint = did_you_mean(str(value), names)
        text = f"must be one of {', '.join(names)}. Received: {value!r}. {hint}".rstrip()
        raise argparse.ArgumentError(action, text)


def positive_int(text: str, end: int = 2**31) -> int:
    """Parses an integer above zero and below `end`, for argparse."""
    number = any_int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1. Received: {text}.")
    if number >= end:
        raise argparse.ArgumentTypeError(f"must be below {end}. Received: {text}.")
    return number


def step_int(text: str) -> int:
    """Parses a number of steps, a 64-bit integer, for argparse."""
    return positive_int(text, 2**63)


def seed_int(text: str) -> int:
    """Parses a random seed, 0 to 2^32 - 1, for argparse."""
    number = any_int(text)
    if not 0 <= number < 2**32:
        raise argparse.ArgumentTypeError(f"must be 0 to {2**32 - 1}. Received: {text}.")
    return number


def gigabytes(text: str) -> float:
    """Parses a number of 10^9 bytes, for argparse."""
    number = positive_number(text)
    if number >= MAX_GB:
        raise argparse.ArgumentTypeError(f"must be below {MAX_GB:g}. Received: {text}.")
    return number


def positive_number(text: str) -> float:
    """Parses a finite number above zero, for argparse."""
    value = any_number(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number above 0. Received: {text!r}.")
    return value


def any_int(text: str) -> int:
    """Parses an integer in the digits 0 to 9, for argparse."""
    if not _WHOLE_NUMBER.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"must be an integer, in the digits 0 to 9. Received: {text[:60]!r}."
        )
    return int(text)
