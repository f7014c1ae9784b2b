"""Plain kernels of random ops, bit for bit those of TensorFlow's CPU kernels.

Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) turns a key
and a 128-bit counter into four 32-bit words. The counter's upper half starts as the op's stream,
and every invocation advances the counter by 256 per number. TensorFlow's `seed` is the key and
`seed2` the stream; seeds 0 and 0, which it replaces randomly, are used as they are, so that runs
are reproducible.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Union

import numpy as np

from cerebras_tf.kernels.registry import plain

# Multipliers and key increments of Philox4x32 (Salmon et al., table 2).
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
# Counters that TensorFlow's GuardedPhiloxRandom reserves for each number of an invocation.
RESERVED = 256
_MASK = 0xFFFFFFFF
# The key with which TensorFlow mixes the seeds of stateless ops.
_MIXING_KEY = 0x02461E293EC8F720
Step = Union[int, np.ndarray]
Seeds = Union[Sequence[int], np.ndarray]


def first_counter(step: Step, seeds: Seeds, size: int) -> int:
    """The 128-bit counter that an invocation starts from.

    Args:
        step: number of earlier invocations of the op.
        seeds: key and stream of the op. A third number is given if invocations differ in size: how
            many numbers the earlier ones drew; it replaces the step. A fourth is the lower half of
            the counter.
        size: numbers that each invocation draws.
    """
    _, stream, *before = (int(number) for number in seeds)
    if len(before) == 2:
        return ((stream % 2**64) << 64) + before[1] % 2**64
    made = before[0] if before else int(step) * size
    return (((stream % 2**64) << 64) + made * RESERVED) % 2**128


def _philox(counter: int, offsets: np.ndarray, seed: int) -> np.ndarray:
    """Words [N, 4] uint32 of the counters counter + offsets [N]."""
    start, above = np.uint64(counter % 2**64), np.uint64(counter >> 64)
    low = start + offsets
    high = np.where(low < start, np.uint64(((counter >> 64) + 1) % 2**64), above)
    mask, shift = np.uint64(_MASK), np.uint64(32)
    words = [low & mask, low >> shift, high & mask, high >> shift]
    key = [seed % 2**32, seed >> 32 & _MASK]
    for _ in range(ROUNDS):
        product0 = words[0] * np.uint64(MULTIPLIERS[0])
        product1 = words[2] * np.uint64(MULTIPLIERS[1])
        words = [
            (product1 >> shift) ^ words[1] ^ np.uint64(key[0]),
            product1 & mask,
            (product0 >> shift) ^ words[3] ^ np.uint64(key[1]),
            product0 & mask,
        ]
        key = [(k + w) & _MASK for k, w in zip(key, WEYL)]
    return np.stack(words, axis=-1).astype(np.uint32)


def _random_words(step: Step, seeds: Seeds, size: int, per_counter: int) -> np.ndarray:
    """Words [groups, 4] for `size` numbers, `per_counter` from each counter."""
    groups = np.arange(-(-size // per_counter), dtype=np.uint64)
    return _philox(first_counter(step, seeds, size), groups, int(seeds[0]))


def _unit(words: np.ndarray, dtype: str) -> np.ndarray:
    """Numbers in [0, 1): low bits of words as the fraction of a number in [1, 2), less 1.

    A float64 takes two words, [..., 2k] -> [..., k]; other dtypes one each.
    """
    if dtype == "float16":
        bits = (words & 0x3FF).astype(np.uint16) | np.uint16(15 << 10)
        return bits.view(np.float16) - np.float16(1)
    if dtype == "float64":
        high, low = words[..., 0::2].astype(np.uint64), words[..., 1::2].astype(np.uint64)
        fraction = (high & np.uint64(0xFFFFF)) << np.uint64(32) | low
        return (fraction | np.uint64(1023 << 52)).view(np.float64) - 1.0
    if dtype == "bfloat16":
        return _unit_bits((words & 0x7F) << 16)
    return _unit_bits(words & 0x7FFFFF)


def _unit_bits(fraction: np.ndarray) -> np.ndarray:
    return (fraction | np.uint32(127 << 23)).astype(np.uint32).view(np.float32) - np.float32(1)


@plain("random_uniform")
def random_uniform(step, seeds, *, shape, dtype):
    """Numbers in [0, 1) of `shape` and `dtype`; step int64 [], seeds int64 [2]."""
    size = math.prod(shape)
    words = _random_words(step, seeds, size, 2 if dtype == "float64" else 4)
    return _unit(words, dtype).reshape(-1)[:size].reshape(shape)


@plain("random_uniform_int")
def random_uniform_int(step, seeds, *, shape, dtype, low, high):
    """Integers in [low, high): low + word modulo (high - low), as TensorFlow, bias included."""
    size = math.prod(shape)
    wide = dtype == "int64"
    words = _random_words(step, seeds, size, 2 if wide else 4).astype(np.uint64)
    if wide:
        words = words[:, 0::2] | words[:, 1::2] << np.uint64(32)
    values = (words % np.uint64(high - low)).astype(np.int64) + low
    return values.reshape(-1)[:size].reshape(shape).astype(dtype)


def _box_muller(words: np.ndarray, dtype: str) -> np.ndarray:
    """Normal numbers from words [..., 4] (Box and Muller, 1958): [..., 4], for float64 [..., 2].

    Logarithm and sine of float32 are computed in float64 and rounded: within a unit in the last
    place of C's.
    """
    kind = np.float64 if dtype == "float64" else np.float32
    uniform = _unit(words, "float64" if dtype == "float64" else "float32")
    first = np.maximum(uniform[..., 0::2], kind(1e-7)).astype(np.float64)
    angle = (2 * math.pi * uniform[..., 1::2].astype(np.float64)).astype(kind).astype(np.float64)
    radius = np.sqrt(np.multiply(-2, np.log(first).astype(kind)))
    pairs = [np.sin(angle).astype(kind) * radius, np.cos(angle).astype(kind) * radius]
    return np.stack(pairs, axis=-1).reshape(*words.shape[:-1], -1)


def _round_to(x: np.ndarray, dtype: str) -> np.ndarray:
    """x in dtype; bfloat16 is held as float32 with the lower half of the bits rounded away."""
    if dtype != "bfloat16":
        return x.astype(dtype)
    bits = x.astype(np.float32).view(np.uint32)
    even = (bits >> np.uint32(16)) & np.uint32(1)
    return ((bits + np.uint32(0x7FFF) + even) & np.uint32(0xFFFF0000)).view(np.float32)


@plain("random_normal")
def random_normal(step, seeds, *, shape, dtype):
    """Normal numbers with mean 0 and standard deviation 1."""
    size = math.prod(shape)
    words = _random_words(step, seeds, size, 2 if dtype == "float64" else 4)
    normal = _box_muller(words, dtype).reshape(-1)[:size]
    return _round_to(normal, dtype).reshape(shape)


@plain("truncated_normal")
def truncated_normal(step, seeds, *, shape, dtype):
    """Normal numbers; those of magnitude 2 and more are drawn again.

    A group of 4 numbers (float64: 2) uses up to 256 counters per number.
    """
    size = math.prod(shape)
    per_counter = 2 if dtype == "float64" else 4
    groups = -(-size // per_counter)
    skip = per_counter * RESERVED // 4
    seed, start = int(seeds[0]), first_counter(step, seeds, size)
    blocks = 4
    while True:
        offsets = np.arange(groups)[:, None] * skip + np.arange(blocks)
        words = _philox(start, offsets.reshape(-1).astype(np.uint64), seed)
        normal = _box_muller(words, dtype).reshape(groups, -1)
        kept = np.abs(normal) < 2
        if blocks == skip or np.min(kept.sum(axis=1), initial=per_counter) >= per_counter:
            break
        blocks = min(2 * blocks, skip)
    order = np.argsort(~kept, axis=1, kind="stable")[:, :per_counter]
    values = np.take_along_axis(normal, order, axis=1).reshape(-1)[:size]
    return _round_to(values, dtype).reshape(shape)


def permutation_counters(size: int) -> int:
    """Counters that a permutation uses: one for four of its size - 1 numbers."""
    return (max(size - 1, 0) + 3) // 4


@plain("random_permutation")
def random_permutation(step, seeds, *, size, dtype):
    """A random order of `size` positions, by swaps from the front (Knuth, 1969, algorithm P).

    A third seed counts the counters that earlier invocations used.
    """
    used = permutation_counters(size)
    _, stream, *before = (int(number) for number in seeds)
    start = ((stream % 2**64) << 64) + (before[0] if before else int(step) * used)
    words = _philox(start % 2**128, np.arange(used, dtype=np.uint64), int(seeds[0])).reshape(-1)
    order = np.arange(size)
    for i in range(size - 1):
        other = i + int(words[i]) % (size - i)
        order[i], order[other] = order[other], order[i]
    return order.astype(dtype)


@plain("philox_key")
def philox_key(seed):
    """Key and stream from a seed, as TensorFlow's stateless ops mix them."""
    low, high = (int(number) % 2**64 for number in seed)
    words = _philox(low + (high << 64), np.zeros(1, np.uint64), _MIXING_KEY)[0].astype(np.uint64)
    return (words[0::2] | words[1::2] << np.uint64(32)).view(np.int64)


@plain("philox_skip")
def philox_skip(state, count):
    """The state of a generator after so many numbers: its 128-bit counter is increased."""
    low, high, key = (int(number) % 2**64 for number in state)
    counter = (low + (high << 64) + int(count) * RESERVED) % 2**128
    return np.array([counter % 2**64, counter >> 64, key], np.uint64).view(np.int64)
