"""Compiled random_uniform, float32: the words of Philox4x32-10, four numbers a counter.

The definition and its sources stand in random.py. Other distributions, which models draw from once
a run, stay plain.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from cerebras_tf.kernels.compiled_jit import inlined, jit
from cerebras_tf.kernels.compiled_threads import for_rows
from cerebras_tf.kernels.random import MULTIPLIERS, ROUNDS, WEYL, Seeds, Step, first_counter
from cerebras_tf.kernels.registry import compiled

F = np.float32
U64 = np.uint64
FIRST, SECOND = U64(MULTIPLIERS[0]), U64(MULTIPLIERS[1])
WEYL0, WEYL1 = U64(WEYL[0]), U64(WEYL[1])
SHIFT, LOW = U64(32), U64(2**32 - 1)
# Of two words side by side: low bits that become a fraction, and the exponents of [1, 2).
FRACTIONS, EXPONENTS = U64(0x7FFFFF * (1 + 2**32)), U64((127 << 23) * (1 + 2**32))
# Numbers drawn before the next ones: they stay in a core's first cache until 1 is taken off. And
# those of whole vectors, in which a row's last ones are drawn, too: one by one they take longer.
BLOCK, WHOLE = 1 << 12, 32


@inlined
def _round(a, b, c, d, key0, key1):
    """A round on words in the low halves of 64 bits, whatever stands in the upper ones."""
    p0 = (a & LOW) * FIRST
    p1 = (c & LOW) * SECOND
    return (p1 >> SHIFT) ^ b ^ key0, p1, (p0 >> SHIFT) ^ d ^ key1, p0


@inlined
def _numbers_of(word, next):
    """Two floats in [1, 2), side by side, whose fractions are the words' low bits."""
    return (((word & LOW) | (next << SHIFT)) & FRACTIONS) | EXPONENTS


class Stream(NamedTuple):
    """The numbers of one invocation: halves of the first counter, and of the key."""

    low: np.uint64
    high: np.uint64
    key0: np.uint64
    key1: np.uint64


def stream_of(step: Step, seeds: Seeds, size: int, skipped: int = 0) -> Stream:
    """The numbers of an invocation that makes `size`; `skipped` counters are passed by."""
    seed = int(seeds[0])
    start = first_counter(step, seeds, size) + skipped
    halves = start % 2**64, (start >> 64) % 2**64, seed % 2**32, (seed >> 32) % 2**32
    return Stream(*map(U64, halves))


@jit()
def _fill(low, high, key0, key1, values):
    """The numbers of a counter (low, high) and those behind it; values [4 n]."""
    pairs = values.view(np.uint64)
    for g in range(pairs.size // 2):
        counter = low + U64(g)
        above = high + U64(counter < low)
        a, b, c, d = counter, counter >> SHIFT, above, above >> SHIFT
        k0, k1 = key0, key1
        for _ in range(ROUNDS):
            a, b, c, d = _round(a, b, c, d, k0, k1)
            k0 = k0 + WEYL0
            k1 = k1 + WEYL1
        pairs[2 * g] = _numbers_of(a, b)
        pairs[2 * g + 1] = _numbers_of(c, d)
    for i in range(values.size):
        values[i] -= F(1)


@jit()
def _uniform_groups(start, stop, stream, out):
    """Numbers 4 start to 4 stop of a stream, into those of out."""
    for first in range(start, stop, BLOCK // 4):
        low = stream.low + U64(first)
        high = stream.high + U64(low < stream.low)
        values = out[4 * first : 4 * min(first + BLOCK // 4, stop)]
        _fill(low, high, stream.key0, stream.key1, values)


@jit()
def uniform_row(stream, first, size, memory):
    """Numbers first to first + size - 1 of a stream.

    Args:
        stream: of the invocation.
        first, size: which ones.
        memory: float32 [size + WHOLE + 3]; the result is a part of it.
    """
    low = stream.low + U64(first // 4)
    high = stream.high + U64(low < stream.low)
    before = first % 4
    drawn = (before + size + WHOLE - 1) // WHOLE * WHOLE
    _fill(low, high, stream.key0, stream.key1, memory[:drawn])
    return memory[before : before + size]


def _is_float32(step: Any, seeds: Any, *, dtype: str, **attrs: Any) -> bool:
    return dtype == "float32"


@compiled("random_uniform", supports=_is_float32)
def random_uniform(
    step: Step, seeds: Seeds, *, out: tuple[np.ndarray, ...], shape: tuple[int, ...], dtype: str
) -> None:
    """random_uniform into out [shape], bit for bit the plain kernel's numbers."""
    flat = out[0].reshape(-1)
    size = flat.size
    whole = size // 4
    stream = stream_of(step, seeds, size)
    for_rows(_uniform_groups, whole, 8 * size, stream, flat[: 4 * whole])
    if size % 4:
        last = np.empty(4, F)
        _uniform_groups(0, 1, stream_of(step, seeds, size, whole), last)
        flat[4 * whole :] = last[: size % 4]
