"""Formats quantities for people: three digits, no exponents."""

from __future__ import annotations

import math

# Upper limit of settings in gigabytes: an exabyte.
MAX_GB = 1e9
_SCALES = ((1e15, "quadrillion"), (1e12, "trillion"), (1e9, "billion"), (1e6, "million"))


def number(value: float) -> str:
    """A number with three digits and thousands separators, such as `2,840` or `0.687`."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    if digits:
        return f"{value:.{digits}f}".rstrip("0").rstrip(".")
    return f"{round(value):,}"


def seconds(value: float) -> str:
    """A time with its unit, such as `653 s` or `11.2 ms`."""
    if value >= 1:
        return f"{number(value)} s"
    return f"{value * 1e3:.3g} ms" if value >= 1e-3 else f"{value * 1e6:.3g} µs"


def in_bytes(size: float) -> str:
    """Bytes with their unit, such as `42.5 GB` or `0.6 kB`."""
    for scale, unit in ((1e9, "GB"), (1e6, "MB")):
        if size >= scale:
            return f"{size / scale:.3g} {unit}"
    return f"{size / 1e3:.3g} kB"


def gigabytes_not_below(size: int) -> str:
    """Bytes as gigabytes with three digits, rounded up."""
    return f"{float(f'{size * 1.005 / 1e9:.3g}'):g}"


def in_words(value: float) -> str:
    """A number in words, such as `12.3 billion`; as digits below a million."""
    for scale, name in _SCALES:
        if value >= scale:
            return f"{value / scale:.3g} {name}"
    return f"{round(value):,}"


def counted(count: int, noun: str, plural: str = "") -> str:
    """A number of things, such as `1 file` or `2,840 files`."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"
