"""Tensor types: sizes, names, text."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.errors import GraphError
from cerebras_tf.ir import Dim, TensorType, parse_type
from cerebras_tf.ir.types import ITEM_BYTES
from tests.messages import raises


@pytest.mark.parametrize(
    "text",
    [
        "float32[]",
        "float32[2,3]",
        "int64[?,4]",
        "bool[0]",
        "bfloat16[?,?]",
        "uint8[7]",
        "float32[8,S<=128,768]",
        "float32[8*(B<=4)*(S<=128)+1,?]",
    ],
)
def test_parse_type_is_the_inverse_of_str(text):
    assert str(parse_type(text)) == text


@pytest.mark.parametrize(
    "text", ["float32", "float32[2", "complex64[2]", "float32[a]", "", "float32[S]"]
)
def test_parse_type_refuses_other_text(text):
    with pytest.raises(GraphError):
        parse_type(text)


def test_unknown_dtype_is_refused_with_those_there_are():
    with raises(GraphError, "string", "float32"):
        TensorType("string", ())


def test_size_and_bytes_count_elements():
    assert TensorType("float32", (2, 3)).size == 6
    assert TensorType("float16", (2, 3)).bytes == 12
    assert TensorType("bool", ()).bytes == 1
    assert TensorType("int64", (0, 3)).bytes == 0


def test_size_needs_every_dimension():
    with raises(GraphError, "float32[?,3]"):
        _ = TensorType("float32", (None, 3)).size


def test_bfloat16_is_held_as_float32():
    kind = TensorType("bfloat16", (2,))
    assert kind.numpy_dtype == np.float32
    assert kind.is_floating
    assert kind.bytes == 4


def test_bfloat16_is_stored_as_its_bits():
    assert TensorType("bfloat16", (2,)).storage_dtype == np.uint16
    for name in ("float16", "float32", "float64", "int32", "bool"):
        assert TensorType(name, (2,)).storage_dtype == np.dtype(name)


def test_bytes_at_rest_are_those_of_the_storage_type():
    for name in ITEM_BYTES:
        kind = TensorType(name, (3,))
        assert kind.bytes == 3 * kind.storage_dtype.itemsize


def test_symbolic_types_are_bounded_and_become_static_for_sizes():
    length = Dim.symbol("S", 128)
    kind = TensorType("float32", (8, length, 768))
    assert (kind.is_static, kind.is_bounded) == (False, True)
    assert kind.size == 6144 * length
    assert kind.max_bytes == 8 * 128 * 768 * 4
    with raises(GraphError, "max_bytes"):
        _ = kind.bytes
    assert kind.at({"S": 5}) == TensorType("float32", (8, 5, 768))
    assert kind.at({"S": 5}).is_static


def test_unknown_dimensions_have_no_bound_and_stay_unknown():
    kind = TensorType("float32", (None, Dim.symbol("S", 128)))
    assert not kind.is_bounded
    assert kind.at({"S": 5}) == TensorType("float32", (None, 5))
    with pytest.raises(GraphError):
        _ = kind.max_bytes


def test_at_refuses_negative_dimensions():
    with pytest.raises(GraphError):
        TensorType("float32", (Dim.symbol("S", 128) - 2,)).at({"S": 1})


def test_with_dtype_and_with_shape_change_only_that():
    kind = TensorType("float32", (2, None))
    assert kind.with_dtype("int32") == TensorType("int32", (2, None))
    assert kind.with_shape((5,)) == TensorType("float32", (5,))
    assert not kind.is_static
    assert kind.rank == 2
