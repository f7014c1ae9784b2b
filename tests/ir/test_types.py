"""Tensor types: sizes, names, text."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.errors import GraphError
from cerebras_tf.ir import TensorType, parse_type


@pytest.mark.parametrize(
    "text", ["float32[]", "float32[2,3]", "int64[?,4]", "bool[0]", "bfloat16[?,?]", "uint8[7]"]
)
def test_parse_type_is_the_inverse_of_str(text):
    assert str(parse_type(text)) == text


@pytest.mark.parametrize("text", ["float32", "float32[2", "complex64[2]", "float32[a]", ""])
def test_parse_type_refuses_other_text(text):
    with pytest.raises(GraphError, match="tensor type"):
        parse_type(text)


def test_unknown_dtype_is_refused_with_those_there_are():
    with pytest.raises(GraphError, match=r"float64, float32.*Received: string"):
        TensorType("string", ())


def test_size_and_bytes_count_elements():
    assert TensorType("float32", (2, 3)).size == 6
    assert TensorType("float16", (2, 3)).bytes == 12
    assert TensorType("bool", ()).bytes == 1
    assert TensorType("int64", (0, 3)).bytes == 0


def test_size_needs_every_dimension():
    with pytest.raises(GraphError, match=r"Received: float32\[\?,3\]"):
        _ = TensorType("float32", (None, 3)).size


def test_bfloat16_is_held_as_float32():
    kind = TensorType("bfloat16", (2,))
    assert kind.numpy_dtype == np.float32
    assert kind.is_floating
    assert kind.bytes == 4


def test_with_dtype_and_with_shape_change_only_that():
    kind = TensorType("float32", (2, None))
    assert kind.with_dtype("int32") == TensorType("int32", (2, None))
    assert kind.with_shape((5,)) == TensorType("float32", (5,))
    assert not kind.is_static
    assert kind.rank == 2
