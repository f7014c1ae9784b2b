"""Connections that are cut at any byte: results are those of an undisturbed run, bit for bit."""

from __future__ import annotations

import contextlib
import random
import socket
import threading

import numpy as np
import pytest

pytest.importorskip("grpc")
pytest.importorskip("cryptography")

from cerebras_tf.address import client as client_module
from cerebras_tf.address.client import Connection
from cerebras_tf.address.credentials import load_credentials
from tests.address.test_server import trained
from tests.runtime.test_session import batch


class Proxy:
    """Passes bytes between clients and a server, and cuts every connection after some.

    Attributes:
        left: bytes until each of the next cuts; none is made once it is empty.
        cuts: how many were made.
    """

    def __init__(self, port):
        self.left, self.cuts = [], 0
        self._target, self._lock = ("127.0.0.1", port), threading.Lock()
        self._open = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                pair = near, socket.create_connection(self._target)
                self._open.append(pair)
                for source, target in (pair, pair[::-1]):
                    threading.Thread(target=self._pump, args=(source, target), daemon=True).start()

    def _pump(self, source, target):
        with contextlib.suppress(OSError):
            while content := source.recv(1 << 16):
                with self._lock:
                    if self.left:
                        self.left[0] -= len(content)
                        if self.left[0] < 0:
                            content = content[: self.left.pop(0)]
                            self.cuts += 1
                            target.sendall(content)
                            self.end()
                            return
                target.sendall(content)
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def end(self):
        """Cuts all connections."""
        for pair in self._open:
            for each in pair:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
        self._open.clear()

    def close(self):
        self._listener.close()
        self.end()


def results(link):
    """The losses of a few steps, and a variable after them."""
    there = trained(link)
    losses = [there.run({"x": batch(8 + n % 3, n)})["loss"] for n in range(6)]
    return [*losses, there.session.get("w")]


def run_schedules(server, files, count):
    link = Connection(f"127.0.0.1:{server.port}", load_credentials(files[0]), lambda line: None)
    whole = results(link)
    link.close()
    proxy, made = Proxy(server.port), 0
    try:
        for seed in range(count):
            rng = random.Random(seed)
            address = f"127.0.0.1:{proxy.port}"
            link = Connection(address, load_credentials(files[0]), lambda line: None)
            proxy.left = [rng.randrange(6000) for _ in range(rng.randrange(1, 4))]
            found = results(link)
            proxy.left = []
            link.close()
            for wanted, value in zip(whole, found):
                np.testing.assert_array_equal(value, wanted)
        made = proxy.cuts
    finally:
        proxy.close()
    assert made >= count


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Connects again at once."""
    monkeypatch.setattr(client_module, "_PAUSES_S", (0.01, 0.05))


def test_a_cut_at_any_byte_changes_no_result(serve, files):
    run_schedules(serve(), files, 3)


@pytest.mark.slow
def test_many_schedules_of_cuts_change_no_result(serve, files):
    run_schedules(serve(), files, 200)
