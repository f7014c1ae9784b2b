"""Stochastic rounding: the mean is kept, exact values stay, and order of work does not matter."""

import numpy as np
import pytest

from cerebras_tf.ir import Graph, TensorType
from cerebras_tf.kernels.half_precision import to_bfloat16, to_float32
from cerebras_tf.kernels.registry import PLAIN
from cerebras_tf.kernels.rounding import random_words
from cerebras_tf.ops import Builder

KEYS = (0, 1, 7 << 40, -3, 2**62 + 12345)


def rounded(x, key):
    return PLAIN["round_randomly"](np.asarray(x, np.float32), np.int64(key))


def test_the_mean_of_many_roundings_is_the_value():
    for value in (1.0 + 2.0**-12, -0.7654321, 3.3e-20, 5.1e7):
        found = rounded(np.full(1 << 18, value, np.float32), 5)
        below, above = found.min(), found.max()
        assert {*np.unique(found)} == {below, above} and below <= np.float32(value) <= above
        unit = float(above) - float(below)
        assert abs(found.mean(dtype=np.float64) - value) < 4 * 0.5 * unit / np.sqrt(found.size)


def test_what_bfloat16_holds_stays_as_it_is():
    exact = to_float32(np.arange(1 << 16, dtype=np.uint16))
    for key in KEYS:
        np.testing.assert_array_equal(rounded(exact, key), exact)


def test_words_of_neighbours_keys_and_steps_are_spread_evenly():
    words = random_words(11, 1 << 16)
    for other in (random_words(12, 1 << 16), random_words(11 + (1 << 32), 1 << 16), words[::-1]):
        assert np.count_nonzero(words == other) < 16
        correlation = np.corrcoef(words.astype(float), other.astype(float))[0, 1]
        assert abs(correlation) < 0.02
    assert abs(np.corrcoef(words[:-1].astype(float), words[1:].astype(float))[0, 1]) < 0.02
    counts = np.bincount(words >> 24, minlength=256)
    assert counts.min() > 180 and counts.max() < 340


def moment_body():
    """m, g, key -> (new m at rest, new m)."""
    graph = Graph("body")
    types = [TensorType("bfloat16", ()), TensorType("float32", ()), TensorType("int64", ())]
    b = Builder(graph)
    m, g, key = (graph.add_input("x", type) for type in types)
    wide = b.op("cast", m, dtype="float32")
    new = b.op("add", wide, b.op("mul", b.op("sub", g, wide), 0.001))
    graph.outputs = [b.op("round_randomly", new, key), new]
    return graph


@pytest.mark.parametrize("shape", [(1,), (5, 7), (3, 4097), (300, 1024), (1 << 18,)])
def test_the_generated_kernel_gives_the_bits_of_the_plain_one(shape):
    pytest.importorskip("numba")
    from cerebras_tf.kernels.codegen import compile_elementwise

    random = np.random.default_rng(0)
    fused = compile_elementwise(moment_body())
    for key in KEYS:
        m = to_bfloat16(random.standard_normal(shape, np.float32))
        g = random.standard_normal(shape, np.float32)
        g.flat[0] = np.nan
        out, new = np.empty(shape, np.uint16), np.empty(shape, np.float32)
        kept = m.copy()
        fused([m, g, np.array(key, np.int64)], [out, new])
        np.testing.assert_array_equal(to_float32(out), rounded(new, key))
        assert np.isnan(to_float32(out).flat[0])
        fused([m, g, np.array(key, np.int64)], [m, new])  # written over the old one
        np.testing.assert_array_equal(m, out)
        near = to_float32(kept) + (g - to_float32(kept)) * np.float32(0.001)
        np.testing.assert_allclose(new, near, 1e-6, 1e-7)


def test_a_broadcast_operand_and_threads_change_no_place(monkeypatch):
    pytest.importorskip("numba")
    from cerebras_tf.kernels import compiled_threads
    from cerebras_tf.kernels.codegen import compile_elementwise

    graph = Graph("body")
    b = Builder(graph)
    x, row, key = (graph.add_input("x", TensorType(d, ())) for d in ("float32", "float32", "int64"))
    graph.outputs = [b.op("round_randomly", b.op("add", x, row), key)]
    random = np.random.default_rng(1)
    x, row = random.standard_normal((700, 513), np.float32), random.standard_normal(513, np.float32)
    found = []
    for threads in (1, 2):
        monkeypatch.setattr(compiled_threads, "_pool", compiled_threads._Pool(threads))
        out = np.empty(x.shape, np.uint16)
        compile_elementwise(graph)([x, row, np.array(9, np.int64)], [out])
        found.append(out)
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(to_float32(found[0]), rounded(x + row, 9))
