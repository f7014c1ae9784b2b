"""Random kernels: published vectors, moments, TensorFlow's numbers, and compiled against plain."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cerebras_tf.kernels.compiled_random import DRAW_UNIT, stream_of, uniform_row
from cerebras_tf.kernels.random import _philox
from cerebras_tf.kernels.registry import COMPILED, PLAIN

SEEDS = np.array([87654321, 42], np.int64)


@pytest.mark.parametrize(
    "counter, key, words",
    [
        (0, 0, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        (2**128 - 1, 2**64 - 1, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            0x0370734413198A2E85A308D3243F6A88,
            0x299F31D0A4093822,
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_philox_gives_the_known_answers_of_its_authors(counter, key, words):
    """Random123's kat_vectors, philox4x32 10."""
    found = _philox(counter, np.zeros(1, np.uint64), key)
    assert " ".join(f"{word:08x}" for word in found[0]) == words


def test_counters_carry_over_sixty_four_bits():
    whole = _philox(2**64 - 2, np.arange(4, dtype=np.uint64), 5)
    single = [_philox(2**64 - 2 + i, np.zeros(1, np.uint64), 5)[0] for i in range(4)]
    np.testing.assert_array_equal(whole, single)


@pytest.mark.parametrize(
    "name, mean, variance, low, high",
    [
        ("random_uniform", 0.5, 1 / 12, 0, 1),
        ("random_normal", 0.0, 1.0, -8, 8),
        ("truncated_normal", 0.0, 0.77374, -2, 2),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_distributions_have_their_moments(name, mean, variance, low, high, dtype):
    values = PLAIN[name](3, SEEDS, shape=(50, 801), dtype=dtype).astype(np.float64)
    deviation = math.sqrt(variance / values.size)
    assert abs(values.mean() - mean) < 5 * deviation + 4e-3 * (dtype == "bfloat16")
    assert abs(values.var() / variance - 1) < 0.03
    assert low <= values.min() < values.max() <= high


def test_steps_and_seeds_give_different_numbers_and_the_same_step_the_same():
    def draw(step, seed2):
        return PLAIN["random_uniform"](step, (1, seed2), shape=(9,), dtype="float32")

    np.testing.assert_array_equal(draw(2, 3), draw(2, 3))
    assert not np.intersect1d(draw(2, 3), draw(3, 3)).size
    assert not np.intersect1d(draw(2, 3), draw(2, 4)).size


def test_integers_cover_their_range():
    attrs = {"shape": (4000,), "low": -3, "high": 4}
    for dtype in ("int32", "int64"):
        values = PLAIN["random_uniform_int"](0, SEEDS, dtype=dtype, **attrs)
        assert values.dtype == dtype
        assert set(values.tolist()) == set(range(-3, 4))


@pytest.mark.tf
@pytest.mark.parametrize("shape", [(3,), (4, 5), (2, 3, 7), (40, 33)])
def test_numbers_equal_tensorflow_s_over_consecutive_steps(shape):
    tf = pytest.importorskip("tensorflow")
    raw = tf.raw_ops
    kinds = [("random_uniform", raw.RandomUniform), ("random_normal", raw.RandomStandardNormal)]
    kinds.append(("truncated_normal", raw.TruncatedNormal))
    given = dict(zip(("seed", "seed2"), SEEDS.tolist()))
    with tf.Graph().as_default():
        tensors = {
            (name, dtype): op(shape=shape, dtype=dtype, **given)
            for name, op in kinds
            for dtype in ("float16", "bfloat16", "float32", "float64")
        }
        for dtype in ("int32", "int64"):
            limits = [tf.constant(value, dtype) for value in (-5, 1000)]
            tensors["random_uniform_int", dtype] = raw.RandomUniformInt(
                shape=shape, minval=limits[0], maxval=limits[1], **given
            )
        with tf.compat.v1.Session() as session:
            steps = [session.run(tensors) for _ in range(3)]
    near = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 5e-7, "float64": 1e-15}
    for step, values in enumerate(steps):
        for (name, dtype), expected in values.items():
            limits = {"low": -5, "high": 1000} if "int" in name else {}
            found = PLAIN[name](step, SEEDS, shape=shape, dtype=dtype, **limits)
            allowed = near[dtype] if "normal" in name else 0
            np.testing.assert_allclose(
                found.astype("d"), expected.astype("d"), allowed, allowed, err_msg=f"{name} {dtype}"
            )


@pytest.mark.parametrize(
    "shape, seed, seed2, step",
    [
        ((), 1, 2, 0),
        ((0, 3), 1, 2, 0),
        ((3,), 1, 2, 0),
        ((1000, 333), 7, 99, 5),
        ((17,), 2**40 + 5, 2**63 - 1, 2**50 + 1),
        ((1023,), -3, -1, (2**64 - 100) // 1023 // 256),
    ],
)
def test_numbers_equal_the_plain_kernel_s(shape, seed, seed2, step):
    attrs = {"shape": shape, "dtype": "float32"}
    drawn_from = np.int64(step), np.array([seed, seed2], np.int64)
    out = np.full(shape, np.nan, "f")
    COMPILED["random_uniform"].run(*drawn_from, out=(out,), **attrs)
    np.testing.assert_array_equal(out, PLAIN["random_uniform"](*drawn_from, **attrs))


@pytest.mark.parametrize("step", [0, 3, (2**56 - 1) // (2**14 - 1)])
def test_a_row_is_a_part_of_the_invocation(step):
    """At the last step the counters carry beyond 64 bits after number 1024."""
    size = 2**14 - 1
    seeds = np.array([5, -1], np.int64)
    whole = PLAIN["random_uniform"](step, seeds, shape=(size,), dtype="float32")
    stream = stream_of(step, seeds, size)
    for first, length in [(0, 5), (1, 0), (1, 9), (1022, 6), (1027, 40), (5003, 8), (size - 3, 3)]:
        row = uniform_row(stream, first, length, np.empty(length + DRAW_UNIT + 3, "f"))
        np.testing.assert_array_equal(row, whole[first : first + length])


def test_other_dtypes_are_left_to_the_plain_kernel():
    assert not COMPILED["random_uniform"].supports(0, (1, 2), shape=(2,), dtype="float64")
