"""Checks how numbers and times are written: three digits, names and units, no exponent."""

from __future__ import annotations

import pytest

from cerebras_tf.quantities import counted, gigabytes_not_below, in_words, number, seconds


@pytest.mark.parametrize(
    ("value", "told"),
    [(0, "0"), (0.07396, "0.074"), (7574.2, "7,574"), (4.356, "4.36"), (60, "60")],
)
def test_numbers_have_three_digits_and_no_exponent(value, told):
    assert number(value) == told


@pytest.mark.parametrize(
    ("value", "told"),
    [(653.4, "653 s"), (3512, "3,512 s"), (13.52, "13.5 s"), (0.0112, "11.2 ms"), (4e-6, "4 µs")],
)
def test_times_have_units(value, told):
    assert seconds(value) == told


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (999, "999"),
        (12_345, "12,345"),
        (1_500_000, "1.5 million"),
        (12_340_000_000, "12.3 billion"),
        (2 * 10**12, "2 trillion"),
        (3 * 10**16, "30 quadrillion"),
    ],
)
def test_large_numbers_have_names(value, told):
    assert in_words(value) == told


def test_things_are_counted():
    told = [counted(n, "file") for n in (0, 1, 2, 1234)]
    assert told == ["0 files", "1 file", "2 files", "1,234 files"]
    assert counted(2, "entry", "entries") == "2 entries"


@pytest.mark.parametrize("size", [270_336, 786_433, 1_996_000_000, 5_999_999_999])
def test_gigabytes_of_a_setting_hold_what_they_are_for(size):
    told = float(gigabytes_not_below(size))
    assert size <= told * 1e9 <= 1.011 * size
