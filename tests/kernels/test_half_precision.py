"""bfloat16 conversions and stochastic rounding: definitions, TensorFlow's casts, compiled forms."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.ir import Graph, TensorType
from cerebras_tf.kernels import compiled_half_precision, compiled_threads
from cerebras_tf.kernels.codegen import FusedElementwise
from cerebras_tf.kernels.half_precision import random_words, to_bfloat16, to_float32, to_storage
from cerebras_tf.kernels.registry import PLAIN
from cerebras_tf.ops import Builder

EVERY_BFLOAT16 = np.arange(1 << 16, dtype=np.uint16)


def _awkward() -> np.ndarray:
    """Every bfloat16 with low bits appended: ties, just below and above them, and none."""
    low = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    return ((EVERY_BFLOAT16.astype(np.uint32) << 16)[:, None] | low).view(np.float32)


def test_every_bfloat16_comes_back():
    again = to_bfloat16(to_float32(EVERY_BFLOAT16))
    quiet = np.where(np.isnan(to_float32(EVERY_BFLOAT16)), EVERY_BFLOAT16 | 0x40, EVERY_BFLOAT16)
    np.testing.assert_array_equal(again, quiet)


def test_known_numbers_round_to_the_nearest_even():
    numbers = np.array([1.0, 1.00390625, 1.01171875, -2.5, 3.4e38, np.inf, -0.0], np.float32)
    bits = [0x3F80, 0x3F80, 0x3F82, 0xC020, 0x7F80, 0x7F80, 0x8000]
    np.testing.assert_array_equal(to_bfloat16(numbers), np.array(bits, np.uint16))


def test_a_nan_stays_one_whatever_its_bits_are():
    bits = np.array([0x7F800001, 0xFF800001, 0x7FFFFFFF, 0xFFFFFFFF], np.uint32)
    assert np.isnan(to_float32(to_bfloat16(bits.view(np.float32)))).all()


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    "array",
    [
        np.float32(1.5),
        np.empty(0, np.float32),
        np.full((3, 2), 1.5, np.float32),
        np.arange(24, dtype=np.float32).reshape(4, 6)[::-1, ::2],
    ],
    ids=["no axes", "no elements", "two axes", "strides"],
)
def test_shapes_and_order_are_kept(array, compiled):
    array = np.asarray(array)
    if compiled:
        bits, wide = np.empty(array.shape, np.uint16), np.empty(array.shape, np.float32)
        compiled_half_precision.to_bfloat16(array, bits)
        compiled_half_precision.to_float32(bits, wide)
    else:
        bits = to_bfloat16(array)
        wide = to_float32(bits)
    assert (bits.shape, bits.dtype) == (array.shape, np.uint16)
    assert (wide.shape, wide.dtype) == (array.shape, np.float32)
    np.testing.assert_array_equal(wide, array)


@pytest.mark.tf
def test_casts_are_tensorflows():
    tf = pytest.importorskip("tensorflow")
    numbers = _awkward()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        given = tf.compat.v1.placeholder(tf.float32, numbers.shape)
        small = tf.cast(given, tf.bfloat16)
        theirs, back = session.run([small, tf.cast(small, tf.float32)], {given: numbers})
    ours, ordinary = to_bfloat16(numbers), ~np.isnan(numbers)
    np.testing.assert_array_equal(ours[ordinary], theirs.view(np.uint16)[ordinary])
    np.testing.assert_array_equal(to_float32(ours), back)


def test_compiled_conversions_are_the_definitions():
    numbers = _awkward()
    bits = np.empty(numbers.shape, np.uint16)
    compiled_half_precision.to_bfloat16(numbers, bits)
    np.testing.assert_array_equal(bits, to_bfloat16(numbers))
    wide = np.empty(numbers.shape, np.float32)
    compiled_half_precision.to_float32(bits, wide)
    np.testing.assert_array_equal(wide.view(np.uint32), to_float32(bits).view(np.uint32))
    part = numbers[::7, ::-2]
    bits = np.empty(part.shape, np.uint16)
    compiled_half_precision.to_bfloat16(part, bits)
    np.testing.assert_array_equal(bits, to_bfloat16(part))


def test_to_storage_returns_arrays_of_the_right_form():
    for array, dtype in (
        (np.ones(3, np.float32), "float32"),
        (np.array([True]), "bool"),
        (np.array([0x3F80], np.uint16), "bfloat16"),
        (np.array([7], np.uint16), "uint16"),
    ):
        assert to_storage(array, dtype) is array


@pytest.mark.parametrize(
    "given, dtype, wanted", [([1.5, 70000.0], "float32", np.float32), (3, "int64", np.int64)]
)
def test_to_storage_converts_other_dtypes(given, dtype, wanted):
    found = to_storage(np.array(given), dtype)
    assert (found.dtype, found.tolist()) == (wanted, given)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_to_storage_rounds_numbers_to_bfloat16(dtype):
    numbers = np.array([[1, -2], [257, 1 << 20]], dtype)
    found = to_storage(numbers, "bfloat16")
    assert (found.dtype, found.shape) == (np.uint16, (2, 2))
    np.testing.assert_array_equal(to_float32(found), [[1, -2], [256, 1 << 20]])


def test_to_storage_takes_bits_of_another_packages_bfloat16():
    theirs = pytest.importorskip("ml_dtypes").bfloat16
    numbers = np.array([1.0, -2.5, np.inf], np.float32)
    found = to_storage(numbers.astype(theirs), "bfloat16")
    np.testing.assert_array_equal(found, np.array([0x3F80, 0xC020, 0x7F80], np.uint16))


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
    random = np.random.default_rng(0)
    fused = FusedElementwise(moment_body())
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
        FusedElementwise(graph)([x, row, np.array(9, np.int64)], [out])
        found.append(out)
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(to_float32(found[0]), rounded(x + row, 9))
