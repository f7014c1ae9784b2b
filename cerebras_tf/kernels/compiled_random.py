"""Compiled random_uniform, float32: the words of Philox4x32-10, four numbers a counter.

The definition and its sources stand in random.py. Other distributions, which models draw from once
a run, stay plain.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from cerebras_tf.kernels.compiled_bits import float_of
from cerebras_tf.kernels.compiled_jit import inlined, jit
from cerebras_tf.kernels.compiled_threads import for_rows
from cerebras_tf.kernels.random import MULTIPLIERS, ROUNDS, WEYL, Seeds, Step, first_counter
from cerebras_tf.kernels.registry import compiled

F = np.float32
U32, U64 = np.uint32, np.uint64
FIRST, SECOND = U64(MULTIPLIERS[0]), U64(MULTIPLIERS[1])
WEYL0, WEYL1 = U32(WEYL[0]), U32(WEYL[1])
SHIFT = U64(32)
FRACTION, EXPONENT = U32(0x7FFFFF), U32(127 << 23)


@inlined
def _unit(word: Any) -> Any:
    """The float in [1, 2) whose fraction is the word's low bits, less 1."""
    return float_of(np.int32((word & FRACTION) | EXPONENT)) - F(1)


@inlined
def _round(a: Any, b: Any, c: Any, d: Any, key0: Any, key1: Any) -> Any:
    p0 = U64(a) * FIRST
    p1 = U64(c) * SECOND
    return U32(U32(p1 >> SHIFT) ^ b ^ key0), U32(p1), U32(U32(p0 >> SHIFT) ^ d ^ key1), U32(p0)


class Stream(NamedTuple):
    """The numbers of one invocation: the first counter [2] uint64 (low, high), and the key."""

    counter: np.ndarray
    key0: np.uint32
    key1: np.uint32


def stream_of(step: Step, seeds: Seeds, size: int, skipped: int = 0) -> Stream:
    """The numbers of an invocation that makes `size`; `skipped` counters are passed by."""
    seed = int(seeds[0])
    start = first_counter(step, seeds, size) + skipped
    counter = np.array([start % 2**64, (start >> 64) % 2**64], np.uint64)
    return Stream(counter, U32(seed % 2**32), U32((seed >> 32) % 2**32))


@jit()
def _uniform_groups(start: Any, stop: Any, counter: Any, key0: Any, key1: Any, out: Any) -> None:
    """Numbers 4 start to 4 stop of out, whose counters are counter [2] (low, high) and on."""
    values = out[4 * start : 4 * stop]
    origin = counter[0]
    first = origin + U64(start)
    above = counter[1]
    for g in range(values.size // 4):
        low = first + U64(g)
        high = above + U64(low < origin)
        a, b, c, d = U32(low), U32(low >> SHIFT), U32(high), U32(high >> SHIFT)
        k0, k1 = key0, key1
        for _ in range(ROUNDS):
            a, b, c, d = _round(a, b, c, d, k0, k1)
            k0 = U32(k0 + WEYL0)
            k1 = U32(k1 + WEYL1)
        values[4 * g] = _unit(a)
        values[4 * g + 1] = _unit(b)
        values[4 * g + 2] = _unit(c)
        values[4 * g + 3] = _unit(d)


@jit()
def uniform_row(stream: Any, first: Any, size: Any, memory: Any) -> Any:
    """Numbers first to first + size - 1 of a stream: a part of memory, float32 [size + 8]."""
    own = np.empty(2, np.uint64)
    own[0] = stream.counter[0] + U64(first // 4)
    own[1] = stream.counter[1] + U64(own[0] < stream.counter[0])
    before = first % 4
    _uniform_groups(0, (before + size + 3) // 4, own, stream.key0, stream.key1, memory)
    return memory[before : before + size]


def _is_float32(step: Any, seeds: Any, *, dtype: str, **attrs: Any) -> bool:
    return dtype == "float32"


@compiled("random_uniform", supports=_is_float32)
def random_uniform(
    step: Step,
    seeds: Seeds,
    *,
    out: tuple[np.ndarray, ...],
    shape: tuple[int, ...],
    dtype: str,
) -> None:
    """random_uniform into out [shape], bit for bit the plain kernel's numbers."""
    flat = out[0].reshape(-1)
    size = flat.size
    whole = size // 4
    stream = stream_of(step, seeds, size)
    for_rows(_uniform_groups, whole, 8 * size, *stream, flat[: 4 * whole])
    if size % 4:
        last = np.empty(4, F)
        _uniform_groups(0, 1, *stream_of(step, seeds, size, whole), last)
        flat[4 * whole :] = last[: size % 4]
