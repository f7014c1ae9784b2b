"""What a wafer keeps of variables that live on another one."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.errors import StoreError
from cerebras_tf.ir import TensorType, Variable
from cerebras_tf.memoryx import disk_speed
from cerebras_tf.memoryx.disk import FileDisk
from cerebras_tf.memoryx.file_store import FileStore
from cerebras_tf.memoryx.store import MemoryStore, write
from cerebras_tf.runtime.shared_store import SharedStore
from cerebras_tf.swarmx.swarm import Alone


class FirstOfTwo(Alone):
    """The first of two wafers; nothing arrives from the other."""

    size = 2

    def objects(self, item):
        """The other says the same."""
        return [item, item]


def store_of(**homes):
    specs = [Variable(name, TensorType("float32", (64, 64)), True) for name in homes]
    store = SharedStore(MemoryStore(specs), FirstOfTwo())
    store.shard(homes)
    for name in homes:
        write(store, name, np.zeros((64, 64), np.float32))
    return store


def test_copies_of_what_lives_elsewhere_take_turns_in_memory():
    store = store_of(here=0, there=1, also_there=1)
    store.set_access_order([["here"], ["there"], ["also_there"]])
    size = 64 * 64 * 4
    (first,) = store.acquire(["there"])
    store.release(["there"])
    (second,) = store.acquire(["also_there"])
    assert np.shares_memory(first, second)
    (third,) = store.acquire(["there"])
    assert not np.shares_memory(second, third)
    assert store.resident_bytes == 3 * size
    store.release(["there", "also_there"])
    assert store.resident_bytes == 3 * size
    assert store.total_resident_bytes >= store.resident_bytes


def test_what_lives_here_is_given_as_it_is():
    store = store_of(here=0, there=1)
    (array,) = store.acquire(["here"])
    store.release(["here"])
    (copy,) = store.acquire(["there"])
    assert not np.shares_memory(array, copy)
    store.release(["there"])


def test_copies_of_many_shapes_take_no_more_than_is_counted():
    shapes = {f"v{i}": (64 + i, 32) for i in range(24)}
    specs = [Variable(name, TensorType("float32", shape), True) for name, shape in shapes.items()]
    store = SharedStore(MemoryStore(specs), FirstOfTwo())
    store.shard({name: 1 if i else 0 for i, name in enumerate(shapes)})
    for name, shape in shapes.items():
        write(store, name, np.zeros(shape, np.float32))
    store.set_access_order([[name] for name in shapes])
    for _ in range(2):
        for name in shapes:
            store.acquire([name])
            assert store.resident_bytes <= store.total_resident_bytes
            store.release([name])
            assert store.resident_bytes <= store.total_resident_bytes


class FirstOnAnotherMachine(FirstOfTwo):
    """The first of two wafers, each with a disk of its own."""

    def objects(self, item):
        """The other says the same of the model."""
        return [item, (item[0], ("another", 0))]


@pytest.mark.parametrize("swarm, share", [(FirstOfTwo(), 2), (FirstOnAnotherMachine(), 1)])
def test_a_wafer_needs_disk_for_what_it_keeps_itself(swarm, share, tmp_path, monkeypatch):
    # Of 3 pages of weights two live here, and one page waits within the step.
    specs = [Variable(name, TensorType("float32", (1024,)), True) for name in "abc"]
    waits, waits_too = (
        [Variable(name, TensorType("float32", (1024,)), False)] for name in ("waits", "waits_too")
    )
    disk = FileDisk(str(tmp_path), 1 << 20)
    store = SharedStore(FileStore(specs, disk), swarm)
    store.shard({"a": 0, "b": 0, "c": 1})
    monkeypatch.setattr(disk_speed, "free_bytes", lambda folder: share * 3 * 4096 - 1)
    with pytest.raises(StoreError, match="that wait, must fit on it"):
        store.reserve(waits)
    monkeypatch.setattr(disk_speed, "free_bytes", lambda folder: share * 4 * 4096)
    store.reserve(waits_too)
    store.close()
