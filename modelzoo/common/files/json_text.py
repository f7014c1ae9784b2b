"""Reads the JSON of users' files: what cannot be read is one kind of error."""

from __future__ import annotations

import json
import math


def parse_json(text, finite=True):
    """Returns the value that a JSON text stands for.

    Args:
        text: the text.
        finite: whether all numbers must be. Rows of other programs may have NaN, which JSON has
            not, under keys that nobody reads; keys that stand twice are refused there, too.

    Raises:
        ValueError: if it is no JSON, nests too deep, or has a key twice or a number that is not
            finite; a JSONDecodeError, which tells the place, for the first of these.
    """
    try:
        if not finite:
            return json.loads(text, object_pairs_hook=_object)
        return json.loads(
            text, object_pairs_hook=_object, parse_float=_finite, parse_constant=_finite
        )
    except RecursionError as error:
        raise ValueError("values that nest too deep to follow") from error


def place(error):
    """Returns what an error of `parse_json` says, with the column where it is of one place."""
    if not isinstance(error, json.JSONDecodeError):
        return str(error)
    return f"{error.msg.removesuffix(' at')} at column {error.colno}"


def is_finite(value):
    """Returns whether all numbers in a value of JSON are finite."""
    values = [value]
    while values:  # they may nest as deep as calls can
        value = values.pop()
        if isinstance(value, float) and not math.isfinite(value):
            return False
        if isinstance(value, dict | list):
            values += value.values() if isinstance(value, dict) else value
    return True


def _object(pairs):
    found = dict(pairs)
    if len(found) < len(pairs):
        seen = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"the key {key[:40]!r} twice in one object")
            seen.add(key)
    return found


def _finite(text):
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]}, which is no finite number")
    return number
