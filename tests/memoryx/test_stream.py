"""Streaming serves live arrays, takes new values, and counts every byte."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.errors import CheckpointError
from cerebras_tf.ir import TensorType, Variable
from cerebras_tf.memoryx.store import MemoryStore
from cerebras_tf.memoryx.stream import MemoryX

F4 = TensorType("float32", (4,))


@pytest.fixture
def memoryx():
    store = MemoryStore([Variable("a", F4), Variable("b", F4)])
    for number, name in enumerate("ab"):
        store.put(name, np.full(4, number, np.float32))
    return MemoryX(store)


def test_weights_come_in_the_order_of_their_names(memoryx):
    found = memoryx.stream_in(["b", "a", "b"])
    assert [array[0] for array in found] == [1, 0, 1]
    assert memoryx.bytes_in == 48


def test_what_is_written_into_a_streamed_array_changes_the_variable(memoryx):
    (array,) = memoryx.stream_in(["a"])
    array[:] = 9
    np.testing.assert_array_equal(memoryx.store.get("a"), np.full(4, 9))


def test_new_values_replace_old_ones(memoryx):
    memoryx.stream_out([("a", np.full(4, 5, np.float32)), ("b", np.full(4, 6, np.float32))])
    assert [memoryx.store.get(name)[0] for name in "ab"] == [5, 6]
    assert memoryx.bytes_out == 32


def test_a_value_written_in_place_is_counted_and_not_copied(memoryx, monkeypatch):
    (array,) = memoryx.stream_in(["a"])
    array += 1
    puts = []
    monkeypatch.setattr(memoryx.store, "put", lambda name, content: puts.append(name))
    memoryx.stream_out([("a", array)])
    assert puts == []
    assert memoryx.bytes_out == 16


def test_one_variables_array_may_become_anothers_value(memoryx):
    (array,) = memoryx.stream_in(["b"])
    memoryx.stream_out([("a", array)])
    array[:] = 7
    np.testing.assert_array_equal(memoryx.store.get("a"), np.ones(4))


def test_a_variable_that_was_never_set_is_named():
    memoryx = MemoryX(MemoryStore([Variable("lost", F4)]))
    with pytest.raises(CheckpointError, match="variable lost: must have a value"):
        memoryx.stream_in(["lost"])
