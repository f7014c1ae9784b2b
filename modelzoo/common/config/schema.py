"""Maps a nested dictionary onto frozen dataclasses, strictly, and words every mistake.

The keys of a model are dataclasses elsewhere. A field's ``metadata``
may hold ``choices`` (allowed values), ``minimum`` (smallest allowed number), ``above`` and
``below`` (numbers too small and too large; of a list, for each of them), ``path`` (a file
system path: True for one that is resolved on loading), ``names`` (of a text that must not be empty:
what it names, where that is no path) and ``build`` (a function of value, path and
report, for values no plain type describes; its attributes, read by
``modelzoo/common/config/reference.py``, say what it takes: ``words``, and ``classes`` by the value
of the key ``tag``). A dataclass may have ``problems()``,
which yields ``(key, text)`` for mistakes that concern several fields. Numbers are those of float32,
and whole ones below SIZES_END; where ``long`` is set, such as for steps, below LONG_END.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import math
import typing

from cerebras_tf.cli.arguments import any_number
from cerebras_tf.suggestions import did_you_mean, nearest

TYPE_WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a finite number",
    str: "a text",
    type(None): "null",
}
SIZES_END = 2**31
LONG_END = 2**63
LARGEST_FLOAT = 3.4028234e38
SMALLEST_FLOAT = 1.1754944e-38  # above 0, with all digits
_MISSING = object()
SHOWN = 300  # characters of a value in a message, and parts


def shortened(value):
    """Returns a value as a message shows it.

    Of large ones the kind alone: aliases may make a YAML's value larger than memory.
    """
    if _is_large(value):
        kind = "section" if isinstance(value, dict) else "list"
        return f"a {kind} of {len(value)}, too large to show"
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}... ({len(text)} characters)"


def _is_large(value):
    waiting, count = [value], 0
    while waiting and count <= SHOWN:
        value = waiting.pop()
        count += 1
        if isinstance(value, list | dict):
            waiting += value.values() if isinstance(value, dict) else value
    return count > SHOWN


class Report:
    """Collects mistakes and knows where they stand.

    Args:
        where: name of the source, such as the YAML's path.
        lines: line number by dotted key, as far as known.
        resolve: maps a path as written to the path to open.
    """

    def __init__(self, where, lines=None, resolve=None):
        self.where = where
        self.lines = lines or {}
        self.resolve = resolve or (lambda value: value)
        self.messages: list[str] = []
        self._repeated: set[int] = set()  # places of messages
        self._told: set[str] = set()  # of keys that stand in the source

    def add(self, path, text, received=_MISSING, advice=""):
        """Adds one mistake, worded *where: what must hold. Received: value. What to do.*"""
        words = [f"{self.where}: {text}"]
        if received is not _MISSING:
            words.append(f"Received: {shortened(received)}.")
        if advice:
            words.append(advice)
        line = self.lines.get(path)
        section, _, key = path.partition(".")
        told = " ".join(words).replace(f"{section}.{key}", key)
        if line:
            self._told.add(told)
        elif told in self._told:
            self._repeated.add(len(self.messages))
        if line:
            words.append(f"Line {line}.")
        self.messages.append(" ".join(words))

    def text(self):
        """Returns the mistakes, one a line; one of a key that a section takes over only once."""
        return "\n".join(
            message for at, message in enumerate(self.messages) if at not in self._repeated
        )


def build(cls, tree, report, path=""):
    """Builds the dataclass `cls` from the mapping `tree`.

    Args:
        cls: a frozen dataclass.
        tree: a mapping from key to plain value.
        report: a Report; every mistake is added to it.
        path: dotted key of `tree` itself, empty at the top.

    Returns:
        The instance, or None if anything in it was wrong.
    """
    if not isinstance(tree, collections.abc.Mapping):
        report.add(path, f"{path or 'the file'} must be a section of keys.", tree)
        return None
    before = len(report.messages)
    hints = typing.get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls)}
    for key, value in tree.items():
        if key not in fields:
            _report_unknown(report, path, str(key), value, fields)
    values = {}
    for name, field in fields.items():
        full = _join(path, name)
        if name not in tree:
            if _is_required(field):
                section = f"section {path}" if path else "top level"
                report.add(path, f"{full} is required. Add it to the {section}.")
            continue
        values[name] = _build_field(field, hints[name], tree[name], full, report)
    if len(report.messages) > before:
        return None
    instance = cls(**values)
    for key, text in getattr(instance, "problems", tuple)():
        tells = "Received: " in text  # of other keys too, say
        received = _MISSING if tells else _received(tree, instance, key)
        report.add(_join(path, key), f"{_join(path, key)} {text}", received)
    return instance


def _received(tree, instance, dotted):
    """Returns what a section holds under a dotted key: as it was given, or else its default."""
    key, _, rest = dotted.partition(".")
    value = tree.get(key, _MISSING) if isinstance(tree, collections.abc.Mapping) else _MISSING
    default = getattr(instance, key, _MISSING)
    if rest:
        return _received(value, default, rest)
    return default if value is _MISSING else value


def check_key(cls, name, value, report, path):
    """Adds to `report` what is wrong with one value under the key `name` of a section `cls`.

    Args:
        cls: a frozen dataclass; a key that it lacks counts for nothing.
        name: the key.
        value: plain value.
        report: a Report.
        path: dotted key of the value.
    """
    field = cls.__dataclass_fields__.get(name)
    if field is not None:
        _build_field(field, typing.get_type_hints(cls)[name], value, path, report)


def taking(build_value, **told):
    """Gives a ``build`` function the attributes that say what it takes; returns it."""
    for name, value in told.items():
        setattr(build_value, name, value)
    return build_value


def build_section(cls):
    """Makes a ``build`` function for a section that may be left out."""

    def build_given(value, path, report):
        return build(cls, value, report, path)

    return taking(build_given, classes={"": cls})


def build_variant(tag, classes):
    """Makes a ``build`` function that picks the dataclass by the value of the key `tag`."""

    def build_tagged(value, path, report):
        if not isinstance(value, collections.abc.Mapping) or tag not in value:
            report.add(path, f"{path} must be a section with the key {tag}.", value)
            return None
        named = isinstance(value[tag], collections.abc.Hashable)  # and no list or section
        cls = classes.get(value[tag]) if named else None
        if cls is None:
            _report_choice(report, _join(path, tag), value[tag], sorted(classes))
            return None
        return build(cls, value, report, path)

    return taking(build_tagged, classes=classes, tag=tag)


def as_tree(instance):
    """Returns the nested plain dictionary of a dataclass: the inverse of `build`.

    In every section the keys without a default stand first, whichever base declares them.
    """

    def plain(value):
        if dataclasses.is_dataclass(value):
            fields = sorted(dataclasses.fields(value), key=lambda field: not _is_required(field))
            return {field.name: plain(getattr(value, field.name)) for field in fields}
        if isinstance(value, (list, tuple)):
            return [plain(item) for item in value]
        return value

    return plain(instance)


def _join(path, key):
    return f"{path}.{key}" if path else str(key)


def _is_required(field):
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _report_unknown(report, path, key, value, fields):
    close = nearest(key, fields, cutoff=0.5)
    # A key such as num_layers is nearer to num_hidden_layers by its words than by its letters.
    words = set(key.split("_"))
    by_words = [name for name in fields if words <= set(name.split("_"))]
    if by_words or close:
        hint = f"Did you mean {_join(path, by_words[0] if by_words else close)}?"
    else:
        hint = f"Known keys: {', '.join(sorted(fields))}."
    full = _join(path, key)
    report.add(full, f"unknown key {full}. {hint}", value)


def _report_choice(report, path, value, choices):
    text = f"{path} must be one of {', '.join(map(str, choices))}."
    report.add(path, text, value, did_you_mean(str(value), map(str, choices)))


def _build_field(field, hint, value, path, report):
    metadata = field.metadata
    optional = field.default is None or _accepts_none(hint)
    if value is None and optional:
        return None
    if "build" in metadata:
        return metadata["build"](value, path, report)
    built = convert(hint, value, path, report)
    if built is None:
        return None
    if "choices" in metadata and built not in metadata["choices"]:
        _report_choice(report, path, value, metadata["choices"])
    numbers = built if isinstance(built, tuple) else (built,)
    end = LONG_END if metadata.get("long") else SIZES_END
    if "minimum" in metadata and min(numbers, default=math.inf) < metadata["minimum"]:
        report.add(path, f"{path} must be at least {metadata['minimum']}.", value)
    if "above" in metadata and min(numbers, default=math.inf) <= metadata["above"]:
        report.add(path, f"{path} must be above {metadata['above']}.", value)
    if "below" in metadata and max(numbers, default=-math.inf) >= metadata["below"]:
        report.add(path, f"{path} must be below {metadata['below']}.", value)
    elif any(isinstance(number, int) and abs(number) >= end for number in numbers):
        bits = end.bit_length()
        report.add(path, f"{path} must be below {end}: it is a number of {bits} bits.", value)
    if metadata.get("path") and "\0" in "".join(built if isinstance(built, tuple) else (built,)):
        report.add(path, f"{path} must be a path, which has no null byte.", value, "Remove it.")
        return None
    named = metadata.get("names", "a file or folder" if metadata.get("path") else None)
    if named and (built == () or "" in (built if isinstance(built, tuple) else (built,))):
        advice = "To leave it out, write null." if optional and built in ("", ()) else ""
        report.add(path, f"{path} must name {named}, not be empty.", value, advice)
    if metadata.get("path") is True:
        return _resolve(built, report.resolve)
    return built


def _accepts_none(hint):
    return hint is type(None) or type(None) in typing.get_args(hint)


def _resolve(value, resolve):
    if isinstance(value, str):
        return resolve(value)
    return tuple(resolve(item) for item in value)


def convert(hint, value, path, report):
    """Converts one plain value to the type `hint`, or reports it and returns None.

    Numbers written as text are numbers: YAML 1.1 reads ``1e-6`` (no dot) as a text.
    """
    if dataclasses.is_dataclass(hint):
        return build(hint, value, report, path)
    options = typing.get_args(hint) if typing.get_origin(hint) is typing.Union else (hint,)
    for option in options:
        converted = _convert_plain(option, value)
        if converted is not _MISSING:
            return converted if in_float32(converted, path, report) else None
    report.add(path, f"{path} must be {type_words(hint)}.", value)
    return None


def in_float32(value, path, report):
    """Tells whether a number, or each of several, is one of float32; reports it otherwise."""
    numbers = value if isinstance(value, tuple) else (value,)
    wrong = [
        number for number in numbers if isinstance(number, float) and abs(number) > LARGEST_FLOAT
    ]
    if wrong:
        report.add(
            path, f"{path} must be at most {LARGEST_FLOAT:.2g}, as float32 has it.", wrong[0]
        )
    return not wrong


def _convert_plain(hint, value):
    origin = typing.get_origin(hint)
    if origin in (list, tuple):
        if not isinstance(value, (list, tuple)):
            return _MISSING
        items = tuple(_convert_plain(typing.get_args(hint)[0], item) for item in value)
        return _MISSING if _MISSING in items else items
    if hint is float or hint is int:
        return _convert_number(hint, value)
    if hint in (bool, str, type(None)) and isinstance(value, hint):
        return value
    if hint in (dict, object) and isinstance(value, hint):
        return value
    return _MISSING


def as_number(value):
    """Returns a number, written as text or not, as float; NaN for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return math.nan
    if isinstance(value, str):  # YAML 1.1 takes some, such as 1e-3, for text
        return any_number(value)
    try:
        return float(value)
    except OverflowError:
        return math.nan


def _convert_number(hint, value):
    if hint is int and isinstance(value, int) and not isinstance(value, bool):
        return value
    number = as_number(value)
    if not math.isfinite(number):
        return _MISSING
    if hint is float:
        return number
    return int(number) if number.is_integer() else _MISSING


def type_words(hint):
    """Returns what a value of the type `hint` is called, such as ``a whole number or null``."""
    if typing.get_origin(hint) is typing.Union:
        return " or ".join(map(type_words, typing.get_args(hint)))
    if typing.get_origin(hint) in (list, tuple):
        return f"a list of {type_words(typing.get_args(hint)[0]).split(' ', 1)[-1]}s"
    return TYPE_WORDS.get(hint, getattr(hint, "__name__", str(hint)))
