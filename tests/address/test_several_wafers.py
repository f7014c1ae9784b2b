"""Several wafers at an address: a server for each, which make every step together."""

from __future__ import annotations

import concurrent.futures
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from cerebras_tf.address import choose
from cerebras_tf.address.remote import RemoteWafer
from cerebras_tf.compiler.pipeline import Options, compile_step
from cerebras_tf.errors import ConfigError, DataError
from cerebras_tf.ir import TensorType, Variable
from cerebras_tf.memoryx.store import MemoryStore
from cerebras_tf.runtime.client import SavedProgram, SessionClient
from cerebras_tf.runtime.cpu import CpuBackend
from cerebras_tf.runtime.session import Session
from cerebras_tf.runtime.shared_store import SharedStore
from tests.address.loopback import Loopback, loopback
from tests.runtime.test_session import WEIGHT, batch, rows_step

SPEC = Variable("w", TensorType("float32", (4, 4)), True)


class Threads:
    """The swarm of two wafers, each of which is a thread."""

    size = 2

    def __init__(self, rank, items, barrier):
        self.rank, self._items, self._barrier = rank, items, barrier

    def objects(self, item):
        self._items[self.rank] = item
        self._barrier.wait(20)
        found = list(self._items)
        self._barrier.wait(20)
        return found

    def gather(self, array):
        return np.stack(self.objects(np.array(array)))

    def start_mean(self, array, root=None):
        array[...] = self.gather(array).mean(0)
        return SimpleNamespace(wait=lambda: None)

    def start_copy(self, array, root):
        array[...] = self.gather(array)[root]
        return SimpleNamespace(wait=lambda: None)


def test_two_services_of_a_job_train_as_two_wafers_here(monkeypatch):
    source = SavedProgram(compile_step(rows_step(8), Options(price=CpuBackend().price, wafers=2)))

    def on_threads(make):
        barrier, items = threading.Barrier(2), [None, None]
        swarms = [Threads(rank, items, barrier) for rank in range(2)]

        def run(swarm):
            client = SessionClient(make(swarm), source)
            client.session.put("w", WEIGHT)
            losses = [client.run({"x": batch(8, 2 * n + swarm.rank)})["loss"] for n in range(3)]
            return [*losses, client.session.get("w")]

        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            return list(pool.map(run, swarms))

    def here(swarm):
        store = SharedStore(MemoryStore([SPEC]), swarm)
        return Session(store, CpuBackend(swarm), swarm=swarm)

    def there(swarm):
        with lock, monkeypatch.context() as patch:
            patch.setattr("cerebras_tf.address.service.mpi.swarm", lambda: swarm)
            wafer = RemoteWafer(Loopback())
        return wafer.session(wafer.store([SPEC], shared=True), True)

    lock = threading.Lock()
    found, wanted = on_threads(there), on_threads(here)
    for one, other in zip(found, wanted):
        for value, same in zip(one, other):
            np.testing.assert_array_equal(value, same)
    np.testing.assert_array_equal(found[0][-1], found[1][-1])


def test_a_store_of_several_wafers_needs_them():
    with pytest.raises(DataError, match="a store of one wafer"):
        loopback()[0].store([SPEC], shared=True)


def test_every_wafer_of_a_job_must_have_a_port(monkeypatch):
    monkeypatch.setattr(choose.job, "wafers", lambda: 3)
    monkeypatch.setattr(choose.job, "rank", lambda: 2)
    assert choose.address_of_rank("[::1]:65533", "cs_ip") == "[::1]:65535"
    for port in (0, 65534):
        with pytest.raises(ConfigError, match="cs_ip.* a port from 1 to 65533"):
            choose.address_of_rank(f"here:{port}", "cs_ip")
