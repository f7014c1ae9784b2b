"""bfloat16 bits and float32: the definitions against TensorFlow, the compiled against those."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.kernels.half_precision import at_rest, to_bfloat16, to_float32

EVERY_BFLOAT16 = np.arange(1 << 16, dtype=np.uint16)


def _awkward() -> np.ndarray:
    """Every bfloat16 with low bits behind it: ties, just below and above them, and none."""
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


@pytest.mark.parametrize("shape", [(), (0,), (3, 2)])
def test_shapes_are_kept(shape):
    array = np.full(shape, 1.5, np.float32)
    bits = to_bfloat16(array)
    assert (bits.shape, bits.dtype) == (shape, np.uint16)
    assert (to_float32(bits).shape, to_float32(bits).dtype) == (shape, np.float32)
    np.testing.assert_array_equal(to_float32(bits), array)


def test_strided_operands_are_read_in_order():
    array = np.arange(24, dtype=np.float32).reshape(4, 6)[::-1, ::2]
    np.testing.assert_array_equal(to_float32(to_bfloat16(array)), array)


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
    pytest.importorskip("numba")
    from cerebras_tf.kernels import compiled_half_precision

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


def test_compiled_conversions_take_scalars():
    pytest.importorskip("numba")
    from cerebras_tf.kernels import compiled_half_precision

    bits, wide = np.empty((), np.uint16), np.empty((), np.float32)
    compiled_half_precision.to_bfloat16(np.array(1.5, np.float32), bits)
    compiled_half_precision.to_float32(bits, wide)
    assert wide == 1.5


def test_what_fits_rests_as_it_is():
    for array, dtype in (
        (np.ones(3, np.float32), "float32"),
        (np.array([True]), "bool"),
        (np.array([0x3F80], np.uint16), "bfloat16"),
        (np.array([7], np.uint16), "uint16"),
    ):
        assert at_rest(array, dtype) is array


def test_numbers_of_another_dtype_are_converted_to_rest():
    found = at_rest(np.array([1.5, 70000.0]), "float32")
    assert (found.dtype, found.tolist()) == (np.float32, [1.5, 70000.0])
    found = at_rest(3, "int64")
    assert (found.dtype, found.shape, int(found)) == (np.int64, (), 3)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_numbers_rest_as_rounded_bits_of_bfloat16(dtype):
    numbers = np.array([[1, -2], [257, 1 << 20]], dtype)
    found = at_rest(numbers, "bfloat16")
    assert (found.dtype, found.shape) == (np.uint16, (2, 2))
    np.testing.assert_array_equal(to_float32(found), [[1, -2], [256, 1 << 20]])


def test_a_packages_own_bfloat16_rests_as_its_bits():
    theirs = pytest.importorskip("ml_dtypes").bfloat16
    numbers = np.array([1.0, -2.5, np.inf], np.float32)
    found = at_rest(numbers.astype(theirs), "bfloat16")
    np.testing.assert_array_equal(found, np.array([0x3F80, 0xC020, 0x7F80], np.uint16))
