"""Reads the JSON of users' files: what cannot be read is one kind of error."""

from __future__ import annotations

import json
import math


def parse_json(text):
    """Returns the value that a JSON text stands for.

    Raises:
        ValueError: if it is no JSON, nests too deep, or has a number that is not finite; a
            JSONDecodeError, which tells the place, for the first of these.
    """
    try:
        return json.loads(text, parse_float=_finite, parse_constant=_finite)
    except RecursionError as error:
        raise ValueError("values that nest too deep to follow") from error


def _finite(text):
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]}, which is no finite number")
    return number
