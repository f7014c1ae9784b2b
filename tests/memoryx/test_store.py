"""The store holds live arrays by name and refuses what does not fit."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.errors import CheckpointError
from cerebras_tf.ir import TensorType, Variable
from cerebras_tf.memoryx.store import MemoryStore

SPECS = [
    Variable("kernel", TensorType("float32", (2, 3)), True),
    Variable("step", TensorType("int64", ())),
    Variable("half", TensorType("float16", (4,))),
]


@pytest.fixture
def store():
    return MemoryStore(SPECS)


def test_get_returns_what_was_put(store):
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    store.put("kernel", array)
    np.testing.assert_array_equal(store.get("kernel"), array)


def test_put_copies(store):
    array = np.zeros((2, 3), np.float32)
    store.put("kernel", array)
    array[:] = 1
    np.testing.assert_array_equal(store.get("kernel"), np.zeros((2, 3)))


def test_get_returns_the_live_array(store):
    store.put("kernel", np.zeros((2, 3), np.float32))
    store.get("kernel")[:] = 5
    np.testing.assert_array_equal(store.get("kernel"), np.full((2, 3), 5))


def test_put_again_writes_into_the_same_memory(store):
    store.put("kernel", np.zeros((2, 3), np.float32))
    held = store.get("kernel")
    store.put("kernel", np.ones((2, 3), np.float32))
    assert store.get("kernel") is held
    np.testing.assert_array_equal(held, np.ones((2, 3)))


def test_put_keeps_the_dtype_of_the_variable(store):
    store.put("half", np.full(4, 1 / 3, np.float32))
    assert store.get("half").dtype == np.float16
    np.testing.assert_array_equal(store.get("half"), np.full(4, 1 / 3).astype(np.float16))


def test_scalars_are_arrays(store):
    store.put("step", np.array(7))
    assert store.get("step").shape == ()
    assert store.get("step") == 7


def test_another_shape_is_refused_and_named(store):
    with pytest.raises(
        CheckpointError, match=r"variable kernel: shape must be \[2, 3\]. Received: \[3, 2\]"
    ):
        store.put("kernel", np.zeros((3, 2), np.float32))
    assert not store.holds("kernel")


def test_a_shape_that_would_broadcast_is_refused(store):
    with pytest.raises(CheckpointError):
        store.put("kernel", np.zeros(3, np.float32))


def test_a_variable_without_a_value_is_named(store):
    with pytest.raises(CheckpointError, match="variable kernel: must have a value before"):
        store.get("kernel")


def test_bytes_count_all_variables_and_those_held(store):
    assert store.bytes == 24 + 8 + 8
    assert store.held_bytes == 0
    store.put("kernel", np.zeros((2, 3), np.float32))
    assert store.held_bytes == 24
    assert store.holds("kernel")
    assert not store.holds("step")
