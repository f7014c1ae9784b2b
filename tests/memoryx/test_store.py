"""Stores hand out variables between acquire and release, and refuse what does not fit."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.errors import CheckpointError
from cerebras_tf.ir import TensorType, Variable
from cerebras_tf.memoryx.store import MemoryStore, write, writing
from tests.machines import content_of

SPECS = [
    Variable("kernel", TensorType("float32", (2, 3)), True),
    Variable("step", TensorType("int64", ())),
    Variable("half", TensorType("float16", (4,))),
    Variable("brain", TensorType("bfloat16", (2,))),
]


@pytest.fixture
def store():
    return MemoryStore(SPECS)


def test_what_is_written_is_read(store):
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    write(store, "kernel", array)
    np.testing.assert_array_equal(content_of(store, "kernel"), array)


def test_writing_copies(store):
    array = np.zeros((2, 3), np.float32)
    write(store, "kernel", array)
    array[:] = 1
    np.testing.assert_array_equal(content_of(store, "kernel"), np.zeros((2, 3)))


def test_what_is_written_into_an_acquired_array_changes_the_variable(store):
    write(store, "kernel", np.zeros((2, 3), np.float32))
    (array,) = store.acquire(["kernel"])
    array[:] = 5
    store.release(["kernel"], dirty=["kernel"])
    np.testing.assert_array_equal(content_of(store, "kernel"), np.full((2, 3), 5))


def test_a_write_that_fails_holds_nothing(store):
    with pytest.raises(KeyError), writing(store, "kernel", fresh=True):
        raise KeyError
    assert not store.has_value("kernel")
    with pytest.raises(RuntimeError, match="it was not acquired"):
        store.release(["kernel"])


def test_arrays_come_in_the_order_of_the_names(store):
    write(store, "kernel", np.ones((2, 3)))
    write(store, "step", np.array(7))
    found = store.acquire(["step", "kernel"])
    assert [array.shape for array in found] == [(), (2, 3)]
    store.release(["step", "kernel"])


def test_all_who_acquire_a_variable_see_the_same_memory(store):
    write(store, "kernel", np.zeros((2, 3)))
    (first,), (second,) = store.acquire(["kernel"]), store.acquire(["kernel"])
    first[:] = 3
    np.testing.assert_array_equal(second, np.full((2, 3), 3))
    store.release(["kernel"])
    store.release(["kernel"], dirty=["kernel"])
    with pytest.raises(RuntimeError, match="kernel is released, but it was not acquired"):
        store.release(["kernel"])


def test_a_variable_acquired_fresh_has_a_value_once_it_is_released_dirty(store):
    (array,) = store.acquire(["kernel"], fresh=True)
    assert not store.has_value("kernel")
    array[:] = 2
    store.release(["kernel"], dirty=["kernel"])
    assert store.has_value("kernel")


def test_a_variable_keeps_its_dtype(store):
    write(store, "half", np.full(4, 1 / 3, np.float32))
    np.testing.assert_array_equal(content_of(store, "half"), np.full(4, 1 / 3).astype(np.float16))


def test_bfloat16_rests_as_bits(store):
    write(store, "brain", np.array([1.0, -2.5], np.float32))
    np.testing.assert_array_equal(content_of(store, "brain"), np.array([0x3F80, 0xC020], np.uint16))


def test_scalars_are_arrays(store):
    write(store, "step", np.array(7))
    found = content_of(store, "step")
    assert isinstance(found, np.ndarray)
    assert (found.shape, int(found)) == ((), 7)


def test_another_shape_is_refused_and_named(store):
    with pytest.raises(
        CheckpointError, match=r"variable kernel: shape must be \[2, 3\]. Received: \[3, 2\]"
    ):
        write(store, "kernel", np.zeros((3, 2), np.float32))
    assert not store.has_value("kernel")


def test_a_shape_that_would_broadcast_is_refused(store):
    with pytest.raises(CheckpointError):
        write(store, "kernel", np.zeros(3, np.float32))


def test_a_variable_without_a_value_is_named(store):
    with pytest.raises(CheckpointError, match="variable kernel: must have a value before"):
        store.acquire(["kernel"])


def test_resident_bytes_count_what_is_held_and_what_will_be(store):
    assert store.total_resident_bytes == 24 + 8 + 8 + 4
    assert store.resident_bytes == 0
    write(store, "kernel", np.zeros((2, 3), np.float32))
    assert store.resident_bytes == 24
    assert store.has_value("kernel")
    assert not store.has_value("step")
