"""Builds frozen dataclasses from plain values, and reports every mistake with its position.

A dataclass describes a section: each field is a key with its type, default and checks, see `field`.
It may have a method `problems()`, which yields `(key, text)` for mistakes between several keys.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import math
import re
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Optional

from cerebras_tf.suggestions import did_you_mean, nearest

TYPE_WORDS = {
    bool: "true or false",
    int: "an integer",
    float: "a finite number",
    str: "a string",
    type(None): "null",
}
SIZES_END = 2**31
LONG_END = 2**63
LARGEST_FLOAT = 3.4028234e38
SMALLEST_FLOAT = 1.1754944e-38  # above 0, with all digits
SHOWN = 300  # characters of a value in a message, and items
# Python accepts digits of other scripts, spaces and 1_000 as numbers; YAML does not.
_WHOLE_NUMBER = re.compile(r"[-+]?[0-9]{1,1000}")
_NUMBER = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")
_MISSING: Any = object()

Builder = Callable[[Any, str, "Report"], Any]


def field(default: Any = dataclasses.MISSING, text: str = "", **checks: Any) -> Any:
    """Declares a key of a section: a field of its dataclass.

    Args:
      default: the default; a key without one is required.
      text: what the key does, for the reference pages. Its first sentence is the help of a flag.
      **checks: any of

        - `choices`: the allowed values.
        - `minimum`, `above`, `below`: limits of a number, or of each number of a list; `minimum`
          is allowed itself, the others are not.
        - `long`: True for a 64-bit integer, such as a step; others have 32.
        - `path`: True for a file system path that is resolved on loading, "as given" for another.
        - `names`: what a string that must not be empty names, if it is not a path.
        - `check`: function of the value; returns what must hold, or None if it holds.
        - `build`: function of value, path and report that builds a value of another type. Its
        attributes `words`, and `classes` by the value of the key `tag`, describe the accepted
        values.
    """
    return dataclasses.field(default=default, metadata={"text": text, **checks})


class Refused(Exception):
    """A value does not pass the checks of its key.

    Attributes:
      text: what must hold.
    """

    def __init__(self, text: str, received: Any, advice: str = "") -> None:
        super().__init__(text)
        self.text, self.received, self.advice = text, received, advice


class Report:
    """Collects mistakes with their positions.

    Args:
      where: the source, such as the path of a params file.
      lines: line number by dotted key, as far as known.
      resolve: maps a path as written to the path to open.
      origins: sources other than `where`, by dotted key, such as an option of the command line.
    """

    def __init__(
        self,
        where: str,
        lines: Optional[Mapping[str, int]] = None,
        resolve: Optional[Callable[[str], str]] = None,
        origins: Optional[Mapping[str, str]] = None,
    ) -> None:
        self.where = where
        self.lines = lines or {}
        self.resolve = resolve or (lambda value: value)
        self.origins = origins or {}
        self.messages: list[str] = []
        self._inherited: set[int] = set()  # messages of keys that stand in no source themselves
        self._mistakes: list[str] = []  # by message, without place and section

    def add(self, path: str, text: str, received: Any = _MISSING, advice: str = "") -> None:
        """Adds one mistake, worded *where: what must hold. Received: value. What to do.*"""
        words = [text]
        if received is not _MISSING:
            words.append(f"Received: {shortened(received)}.")
        if advice:
            words.append(advice)
        section, _, key = path.partition(".")
        self._mistakes.append(" ".join(words).replace(f"{section}.{key}", key))
        origin, line = self._origin(path), self.lines.get(path)
        if line and origin is None:
            words.append(f"Line {line}.")
        elif origin is None:
            self._inherited.add(len(self.messages))
        self.messages.append(" ".join([f"{origin or self.where}:", *words]))

    def _origin(self, path: str) -> Optional[str]:
        """Returns the source of a key if it is not `where`."""
        for key, name in self.origins.items():
            is_made = path not in self.lines and key.startswith(f"{path}.")
            if is_made or f"{path}.".startswith(f"{key}."):
                return name
        return None

    def text(self) -> str:
        """Returns the mistakes, one a line. A mistake that sections inherit appears once."""
        given = {m for at, m in enumerate(self._mistakes) if at not in self._inherited}
        return "\n".join(
            message
            for at, message in enumerate(self.messages)
            if at not in self._inherited or self._mistakes[at] not in given
        )


def shortened(value: Any) -> str:
    """Returns a value as text for a message; of a large one only its kind.

    Aliases can make a YAML value larger than memory.
    """
    if _is_large(value):
        kind = "section" if isinstance(value, dict) else "list"
        return f"a {kind} of {len(value)}, too large to show"
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}... ({len(text)} characters)"


def _is_large(value: Any) -> bool:
    waiting, count = [value], 0
    while waiting and count <= SHOWN:
        value = waiting.pop()
        count += 1
        if isinstance(value, (list, dict)):
            waiting += value.values() if isinstance(value, dict) else value
    return count > SHOWN


# ---- sections


def build(cls: Any, tree: Any, report: Report, path: str = "") -> Any:
    """Builds the dataclass `cls` from the mapping `tree`.

    Args:
      cls: a frozen dataclass.
      tree: a mapping from key to plain value.
      report: every mistake is added to it.
      path: dotted key of `tree` itself, empty at the top.

    Returns:
      The instance, or None if there was a mistake.
    """
    if not isinstance(tree, Mapping):
        report.add(path, f"{path or 'the file'} must be a section of keys.", tree)
        return None
    before = len(report.messages)
    hints = typing.get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls)}
    for key, value in tree.items():
        if key not in fields:
            _report_unknown(report, path, str(key), value, fields)
    values = {}
    for name, each in fields.items():
        full = _join(path, name)
        if name in tree:
            values[name] = _build_field(each, hints[name], tree[name], full, report)
        elif is_required(each):
            section = f"section {path}" if path else "top level"
            report.add(path, f"{full} is required. Add it to the {section}.")
    if len(report.messages) > before:
        return None
    instance = cls(**values)
    for key, text in getattr(instance, "problems", tuple)():
        shows_value = "Received: " in text  # of several keys
        received = _MISSING if shows_value else _received(tree, instance, key)
        report.add(_join(path, key), f"{_join(path, key)} {text}", received)
    return instance


def _build_field(each: Any, hint: Any, value: Any, path: str, report: Report) -> Any:
    checks = each.metadata
    optional = each.default is None or accepts_none(hint)
    if value is None and optional:
        return None
    if "build" in checks:
        return checks["build"](value, path, report)
    if dataclasses.is_dataclass(hint):
        return build(hint, value, report, path)
    try:
        built = check_value(hint, checks, value)
    except Refused as wrong:
        advice = wrong.advice
        if optional and value in ("", []):
            advice = "To remove it, write null."
        report.add(path, f"{path} {wrong.text}", wrong.received, advice)
        return None
    if checks.get("path") is not True:
        return built
    return report.resolve(built) if isinstance(built, str) else tuple(map(report.resolve, built))


def _received(tree: Any, instance: Any, dotted: str) -> Any:
    """Returns the value of a dotted key as given, or its default."""
    key, _, rest = dotted.partition(".")
    value = tree.get(key, _MISSING) if isinstance(tree, Mapping) else _MISSING
    default = getattr(instance, key, _MISSING)
    if rest:
        return _received(value, default, rest)
    return default if value is _MISSING else value


def _report_unknown(
    report: Report, path: str, key: str, value: Any, fields: Mapping[str, Any]
) -> None:
    close = nearest(key, fields, cutoff=0.5)
    # num_layers is more similar to num_hidden_layers by words than by letters.
    words = set(key.split("_"))
    by_words = [name for name in fields if words <= set(name.split("_"))]
    if by_words or close:
        hint = f"Did you mean {_join(path, str(by_words[0] if by_words else close))}?"
    else:
        hint = f"Known keys: {', '.join(sorted(fields))}."
    full = _join(path, key)
    report.add(full, f"unknown key {full}. {hint}", value)


def taking(build_value: Any, **description: Any) -> Any:
    """Sets the attributes of a `build` function that describe its values; returns it."""
    for name, value in description.items():
        setattr(build_value, name, value)
    return build_value


def build_section(cls: Any) -> Builder:
    """Makes a `build` function for a section that may be left out."""

    def build_given(value: Any, path: str, report: Report) -> Any:
        return build(cls, value, report, path)

    return taking(build_given, classes={"": cls})


def build_variant(tag: str, classes: Mapping[str, Any]) -> Builder:
    """Makes a `build` function that picks the dataclass by the value of the key `tag`."""

    def build_tagged(value: Any, path: str, report: Report) -> Any:
        if not isinstance(value, Mapping) or tag not in value:
            report.add(path, f"{path} must be a section with the key {tag}.", value)
            return None
        is_key = isinstance(value[tag], collections.abc.Hashable)  # not a list or section
        cls = classes.get(value[tag]) if is_key else None
        if cls is None:
            text = f"{_join(path, tag)} {_one_of(sorted(classes))}"
            report.add(_join(path, tag), text, value[tag], did_you_mean(str(value[tag]), classes))
            return None
        return build(cls, value, report, path)

    return taking(build_tagged, classes=classes, tag=tag)


def as_tree(instance: Any) -> Any:
    """Returns the nested plain dictionary of a dataclass: the inverse of `build`.

    In every section, keys without a default come first.
    """
    if dataclasses.is_dataclass(instance):
        fields = sorted(dataclasses.fields(instance), key=lambda each: not is_required(each))
        return {each.name: as_tree(getattr(instance, each.name)) for each in fields}
    if isinstance(instance, (list, tuple)):
        return [as_tree(item) for item in instance]
    return instance


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else str(key)


def is_required(each: Any) -> bool:
    """Whether a field has no default."""
    return each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING


def accepts_none(hint: Any) -> bool:
    """Whether a type includes None."""
    return hint is type(None) or type(None) in typing.get_args(hint)


# ---- values


def check_value(hint: Any, checks: Mapping[str, Any], value: Any) -> Any:
    """Converts a plain value to the type of its key, and checks it.

    Args:
      hint: the type, such as `Optional[int]`.
      checks: the checks of `field`.
      value: a plain value; lists become tuples.

    Raises:
      Refused: the value is of another type or does not pass a check.
    """
    built = _converted(hint, value)
    items = built if isinstance(built, tuple) else (built,)
    if "choices" in checks and built not in checks["choices"]:
        choices = list(map(str, checks["choices"]))
        raise Refused(_one_of(choices), value, did_you_mean(str(value), choices))
    numbers = [item for item in items if isinstance(item, (int, float))]
    if numbers:
        _check_numbers(numbers, checks, value)
    if checks.get("path") and any("\0" in item for item in items):
        raise Refused("must be a path without null bytes.", value, "Remove it.")
    named = checks.get("names", "a file or folder" if checks.get("path") else None)
    if named and (not items or "" in items):
        raise Refused(f"must name {named}, not be empty.", value)
    problem = checks["check"](built) if "check" in checks else None
    if problem:
        raise Refused(problem, value)
    return built


def _check_numbers(numbers: list[Any], checks: Mapping[str, Any], value: Any) -> None:
    end = LONG_END if checks.get("long") else SIZES_END
    if "minimum" in checks and min(numbers) < checks["minimum"]:
        raise Refused(f"must be at least {checks['minimum']}.", value)
    if "above" in checks and min(numbers) <= checks["above"]:
        raise Refused(f"must be above {checks['above']}.", value)
    if "below" in checks and max(numbers) >= checks["below"]:
        raise Refused(f"must be below {checks['below']}.", value)
    if any(isinstance(number, int) and abs(number) >= end for number in numbers):
        raise Refused(f"must be below {end}, the limit of a {end.bit_length()}-bit integer.", value)


def convert(hint: Any, value: Any, path: str, report: Report) -> Any:
    """Converts one plain value to the type `hint`, or reports it and returns None."""
    try:
        return _converted(hint, value)
    except Refused as wrong:
        report.add(path, f"{path} {wrong.text}", wrong.received)
        return None


def _converted(hint: Any, value: Any) -> Any:
    if hint is Any:
        return value
    options = typing.get_args(hint) if typing.get_origin(hint) is typing.Union else (hint,)
    for option in options:
        found = _convert_plain(option, value)
        if found is not _MISSING:
            _refuse_beyond_float32(found)
            return found
    raise Refused(f"must be {type_words(hint)}.", value)


def _refuse_beyond_float32(found: Any) -> None:
    for number in found if isinstance(found, tuple) else (found,):
        if isinstance(number, float) and abs(number) > LARGEST_FLOAT:
            raise Refused(f"must be at most {LARGEST_FLOAT:.2g}, the largest float32.", number)


def _convert_plain(hint: Any, value: Any) -> Any:
    if typing.get_origin(hint) in (list, tuple):
        if not isinstance(value, (list, tuple)):
            return _MISSING
        items = tuple(_convert_plain(typing.get_args(hint)[0], item) for item in value)
        return _MISSING if _MISSING in items else items
    if hint is float or hint is int:
        return _convert_number(hint, value)
    if hint in (bool, str, dict, type(None)) and isinstance(value, hint):
        return value
    return _MISSING


def _convert_number(hint: Any, value: Any) -> Any:
    if hint is int and isinstance(value, int) and not isinstance(value, bool):
        return value
    if hint is int and isinstance(value, str) and _WHOLE_NUMBER.fullmatch(value):
        return int(value)
    number = as_number(value)
    if not math.isfinite(number):
        return _MISSING
    if hint is float:
        return number
    return int(number) if number.is_integer() else _MISSING


def as_number(value: Any) -> float:
    """Returns a number, which may be written as text, as a float; NaN for other values.

    YAML 1.1 reads some numbers, such as ``1e-3`` (no dot), as texts.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return math.nan
    if isinstance(value, str):
        return number_of(value)
    try:
        return float(value)
    except OverflowError:
        return math.nan


def number_of(text: str) -> float:
    """Returns the number that a text is, in the digits 0 to 9; NaN for other text."""
    return float(text) if _NUMBER.fullmatch(text) else math.nan


def type_words(hint: Any) -> str:
    """Returns the name of a type for users, such as ``an integer or null``."""
    if typing.get_origin(hint) is typing.Union:
        return " or ".join(map(type_words, typing.get_args(hint)))
    if typing.get_origin(hint) in (list, tuple):
        return f"a list of {type_words(typing.get_args(hint)[0]).split(' ', 1)[-1]}s"
    return TYPE_WORDS.get(hint, getattr(hint, "__name__", str(hint)))


def _one_of(choices: Iterable[str]) -> str:
    return f"must be one of {', '.join(choices)}."


def regular_expressions(patterns: Iterable[str]) -> Optional[str]:
    """A `check` of `field`: the texts must be regular expressions."""
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            return f"must be regular expressions. {pattern!r} is invalid ({error})."
    return None
