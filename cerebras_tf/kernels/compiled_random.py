"""Compiled random_uniform in float32: Philox4x32-10, four numbers per counter.

random.py has the definition and its sources. Other distributions are drawn rarely and stay plain.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from cerebras_tf.kernels.compiled_jit import inlined, jit
from cerebras_tf.kernels.compiled_threads import parallel_for
from cerebras_tf.kernels.random import MULTIPLIERS, ROUNDS, WEYL, Seeds, Step, first_counter
from cerebras_tf.kernels.registry import compiled

F = np.float32
U64 = np.uint64
FIRST, SECOND = U64(MULTIPLIERS[0]), U64(MULTIPLIERS[1])
WEYL0, WEYL1 = U64(WEYL[0]), U64(WEYL[1])
SHIFT, LOW = U64(32), U64(2**32 - 1)
# For two words in 64 bits: low bits that become a fraction, and the exponents of [1, 2).
FRACTIONS, EXPONENTS = U64(0x7FFFFF * (1 + 2**32)), U64((127 << 23) * (1 + 2**32))
# Numbers drawn at a time, so that they stay in L1 until 1 is subtracted; and the unit of draws, a
# whole number of vectors: single numbers take longer.
BLOCK, DRAW_UNIT = 1 << 12, 32


@inlined
def _philox_round(a, b, c, d, key0, key1):
    """One round on words in the low halves of 64 bits; upper halves are ignored."""
    p0 = (a & LOW) * FIRST
    p1 = (c & LOW) * SECOND
    return (p1 >> SHIFT) ^ b ^ key0, p1, (p0 >> SHIFT) ^ d ^ key1, p0


@inlined
def _unit_pair(word, next):
    """Two floats in [1, 2) in 64 bits, whose fractions are the words' low bits."""
    return (((word & LOW) | (next << SHIFT)) & FRACTIONS) | EXPONENTS


class Stream(NamedTuple):
    """The numbers of one invocation: halves of the first counter, and of the key."""

    low: np.uint64
    high: np.uint64
    key0: np.uint64
    key1: np.uint64


def stream_of(step: Step, seeds: Seeds, size: int, skipped: int = 0) -> Stream:
    """The stream of an invocation that draws `size` numbers; `skipped` counters are skipped."""
    seed = int(seeds[0])
    start = first_counter(step, seeds, size) + skipped
    halves = start % 2**64, (start >> 64) % 2**64, seed % 2**32, (seed >> 32) % 2**32
    return Stream(*map(U64, halves))


@jit()
def _fill_uniform(low, high, key0, key1, values):
    """The numbers of counter (low, high) and those after it; values [4 n]."""
    pairs = values.view(np.uint64)
    for g in range(pairs.size // 2):
        counter = low + U64(g)
        above = high + U64(counter < low)
        a, b, c, d = counter, counter >> SHIFT, above, above >> SHIFT
        k0, k1 = key0, key1
        for _ in range(ROUNDS):
            a, b, c, d = _philox_round(a, b, c, d, k0, k1)
            k0 = k0 + WEYL0
            k1 = k1 + WEYL1
        pairs[2 * g] = _unit_pair(a, b)
        pairs[2 * g + 1] = _unit_pair(c, d)
    for i in range(values.size):
        values[i] -= F(1)


@jit()
def _uniform_groups(start, stop, stream, out):
    """Numbers [4 start, 4 stop) of a stream into those of out."""
    for first in range(start, stop, BLOCK // 4):
        low = stream.low + U64(first)
        high = stream.high + U64(low < stream.low)
        values = out[4 * first : 4 * min(first + BLOCK // 4, stop)]
        _fill_uniform(low, high, stream.key0, stream.key1, values)


@jit()
def uniform_row(stream, first, size, memory):
    """Numbers [first, first + size) of a stream.

    Args:
        memory: float32 [size + DRAW_UNIT + 3]; the result is a part of it.
    """
    low = stream.low + U64(first // 4)
    high = stream.high + U64(low < stream.low)
    before = first % 4
    drawn = (before + size + DRAW_UNIT - 1) // DRAW_UNIT * DRAW_UNIT
    _fill_uniform(low, high, stream.key0, stream.key1, memory[:drawn])
    return memory[before : before + size]


def _is_float32(*operands: Any, dtype: str, **attrs: Any) -> bool:
    return dtype == "float32"


@compiled("random_uniform", supports=_is_float32)
def random_uniform(step, seeds, *, out, shape, dtype):
    """random_uniform into out [shape], bit for bit the plain kernel's numbers."""
    flat = out[0].reshape(-1)
    size = flat.size
    complete = size // 4
    stream = stream_of(step, seeds, size)
    parallel_for(_uniform_groups, complete, 8 * size, stream, flat[: 4 * complete])
    if size % 4:
        last = np.empty(4, F)
        _uniform_groups(0, 1, stream_of(step, seeds, size, complete), last)
        flat[4 * complete :] = last[: size % 4]


@jit()
def _draw_rows(start, stop, rows, stream, out):
    width = out.shape[1]
    memory = np.empty(width + DRAW_UNIT + 3, np.float32)
    for r in range(start, stop):
        numbers = uniform_row(stream, rows[r] * width, width, memory)
        row = out[r]
        for j in range(width):
            row[j] = numbers[j]


@compiled("random_uniform_rows", supports=_is_float32)
def random_uniform_rows(rows, step, seeds, *, out, shape, axes, dtype):
    """random_uniform_rows into out, bit for bit the plain kernel's numbers."""
    size = int(np.prod(shape, dtype=np.int64))
    flat = out[0].reshape(len(rows), -1)
    stream = stream_of(step, seeds, size)
    parallel_for(_draw_rows, len(rows), 8 * flat.size, np.array(rows, np.int64), stream, flat)
