"""Clients and servers over TLS on this computer; connections that break."""

from __future__ import annotations

import concurrent.futures
import os
import socket
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("grpc")
pytest.importorskip("cryptography")

from cerebras_tf.address import client as client_module
from cerebras_tf.address import messages as m
from cerebras_tf.address import server as server_module
from cerebras_tf.address.client import Connection, status_of
from cerebras_tf.address.credentials import Credentials, load_credentials, new_credentials
from cerebras_tf.address.remote import RemoteWafer
from cerebras_tf.errors import ConfigError, DataError, SystemUnreachableError
from cerebras_tf.ir import TensorType, Variable
from cerebras_tf.memoryx.store import reading, write
from cerebras_tf.runtime.client import SessionClient
from cerebras_tf.runtime.cpu import CpuBackend
from cerebras_tf.runtime.session import Session
from tests.machines import store_of
from tests.runtime.test_session import WEIGHT, Compiler, batch

SPECS = [Variable("w", TensorType("float32", (4, 4)), True)]


@pytest.fixture
def connect(files):
    """Opens connections, and closes them at the end of the test."""
    opened = []

    def made(server, lines=None):
        lines = [] if lines is None else lines
        address = f"127.0.0.1:{server.port}"
        found = Connection(address, load_credentials(files[0]), lines.append)
        opened.append(found)
        return found

    yield made
    for connection in opened:
        connection.close()


def trained(link):
    """A client of a session at an address."""
    wafer = RemoteWafer(link)
    store = wafer.store(SPECS)
    write(store, "w", WEIGHT)
    return SessionClient(wafer.session(store, True), Compiler())


def test_forty_steps_equal_those_of_this_process(serve, connect):
    here = SessionClient(Session(store_of(SPECS, {"w": WEIGHT}), CpuBackend()), Compiler())
    there = trained(connect(serve()))
    for seed in range(40):
        given = {"x": batch(8 + seed % 3, seed)}
        assert there.run(given)["loss"] == here.run(given)["loss"]
    np.testing.assert_array_equal(there.session.get("w"), here.session.get("w"))
    assert there.session.peak_bytes == here.session.peak_bytes > 0


def test_a_step_that_is_asked_for_again_is_made_once(serve, connect, monkeypatch):
    lines: list[str] = []
    link = connect(serve(), lines)
    there = trained(link)
    losses = [there.run({"x": batch(8)})["loss"] for _ in range(3)]
    receive, cuts = link._next, [0]

    def cut():
        found = receive()  # the answer is lost on the way
        cuts[0] += 1
        if cuts[0] == 1:
            link._answers.cancel()
            raise client_module._Ended()
        return found

    monkeypatch.setattr(link, "_next", cut)
    losses.append(there.run({"x": batch(8)})["loss"])
    link._answers.cancel()  # before the request
    losses.append(there.run({"x": batch(8)})["loss"])
    whole = trained(connect_again(link, connect, serve))
    assert losses == [whole.run({"x": batch(8)})["loss"] for _ in range(5)]
    assert sum("connected again" in line for line in lines) == 2


def connect_again(link, connect, serve):
    link.close()
    return connect(serve())


def test_an_interrupted_request_does_not_disturb_the_next(serve, connect, monkeypatch):
    link = connect(serve())
    there = trained(link)

    def interrupted():
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(link, "_next", interrupted)
        with pytest.raises(KeyboardInterrupt):
            there.session.get("w")
    np.testing.assert_array_equal(there.session.get("w"), WEIGHT)


def test_large_variables_and_errors_pass(serve, connect):
    link = connect(serve())
    store = RemoteWafer(link).store([Variable("v", TensorType("float32", (900, 1000)))])
    content = np.random.default_rng(0).random((900, 1000), np.float32)
    write(store, "v", content)
    with reading(store, "v") as array:
        np.testing.assert_array_equal(array, content)
    with pytest.raises(DataError, match="a store that is open"):
        link.call(m.Get(99, "v"))
    with pytest.raises(DataError, match="well formed"):
        link.call(m.Done())  # no request
    assert store.has_value("v")


def test_the_next_client_gets_the_wafer_without_the_state_of_the_last(serve, connect):
    server, lines = serve(), []
    first = connect(server)
    store = RemoteWafer(first).store(SPECS)
    found = {}
    waiting = threading.Thread(target=lambda: found.update(link=connect(server, lines)))
    waiting.start()
    while not server.status()["waiting"]:
        pass
    assert server.status()["connected"] and len(server.status()["waiting"]) == 1
    first.close()
    waiting.join(20)
    assert "number 1 in the queue" in lines[0]
    with pytest.raises(DataError, match="a store that is open"):
        found["link"].call(m.FindValues(store.number))
    with pytest.raises(SystemUnreachableError, match="was closed"):
        first.call(m.FindValues(1))


def test_four_clients_at_once_are_served_in_turn(serve, connect):
    server, lines = serve(), []

    def run(seed):
        link = connect(server, lines)
        there = trained(link)
        found = [there.run({"x": batch(8, seed + step)})["loss"] for step in range(4)]
        link.close()
        return found

    holder = connect(server)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        pending = [pool.submit(run, seed) for seed in range(4)]
        while len(server.status()["waiting"]) < 4:
            time.sleep(0.01)
        holder.close()
        together = [each.result(20) for each in pending]
    for place in range(1, 5):
        assert any(f"number {place} in the queue" in line for line in lines)
    assert together == [run(seed) for seed in range(4)]


def test_a_job_of_servers_ends_if_a_client_is_lost_within_a_step(serve, connect, monkeypatch):
    ended, step = threading.Event(), threading.Event()
    monkeypatch.setattr(server_module, "_WAIT_S", 0.02)
    monkeypatch.setattr(server_module, "_STEP_S", 0.0)
    monkeypatch.setattr(m, "ALIVE_S", 0.02)
    monkeypatch.setattr(server_module, "os", SimpleNamespace(_exit=lambda code: ended.set()))
    server = serve(keep_s=0.0)
    link = connect(server)
    monkeypatch.setattr(server_module.job, "wafers", lambda: 2)
    monkeypatch.setattr(server._service, "answer", lambda request: step.wait(20))
    link.begin(m.AskClock())
    while not server._client.work:
        time.sleep(0.01)
    link._disconnect()
    assert ended.wait(20)
    step.set()


def test_the_lease_of_a_lost_client_ends(serve, connect, caplog):
    caplog.set_level("INFO", "cerebras_tf.server")
    server = serve(keep_s=0.0)
    link = connect(server)
    store = RemoteWafer(link).store(SPECS)
    link._disconnect()
    other = connect(server)
    other.close()
    assert f"process {os.getpid()} at 127.0.0.1" in lost(caplog)[0]
    with pytest.raises(SystemUnreachableError, match=r"lease that has ended.*last checkpoint"):
        store.has_value("w"), store.borrow()


def lost(caplog):
    return [line for line in caplog.messages if line.endswith("is lost")]


def test_a_server_that_was_restarted_is_recognized(serve, connect, monkeypatch):
    monkeypatch.setattr(client_module, "_PAUSES_S", (0.05, 0.1))
    server = serve()
    there = trained(connect(server))
    there.run({"x": batch(8)})
    server.stop()
    serve(f"127.0.0.1:{server.port}")
    for _ in range(2):
        with pytest.raises(SystemUnreachableError, match="was restarted") as caught:
            there.run({"x": batch(8)})
        assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_a_server_that_stays_away_is_given_up(serve, connect, monkeypatch):
    monkeypatch.setattr(client_module, "_PAUSES_S", (0.05, 0.1))
    server = serve(keep_s=0.2)
    there = trained(connect(server))
    server.stop()
    with pytest.raises(SystemUnreachableError, match="no answer for 0 s"):
        there.session.get("w")


def test_only_the_token_opens_the_wafer(serve, files, tmp_path, caplog):
    caplog.set_level("INFO", "cerebras_tf.server")
    server = serve()
    address, own = f"127.0.0.1:{server.port}", load_credentials(files[0])
    with pytest.raises(ConfigError, match="the token of the wafer"):
        Connection(address, Credentials(own.certificate, "A" * 44), print)
    with pytest.raises(ConfigError, match="the token of the wafer"):
        status_of(address, Credentials(own.certificate, ""))
    refused = [line for line in caplog.messages if line.startswith("wafer: refused 127.0.0.1:")]
    assert len(refused) == 2 and refused[0].endswith("another token")
    other = new_credentials(tmp_path / "a.pem", tmp_path / "b.pem")
    with pytest.raises(ConfigError, match="the certificate of the wafer"):
        Connection(address, other, print)
    found = status_of(address, own)
    assert found["holder"] is None and own.token not in str(found)


def test_other_servers_are_no_wafers(files):
    with socket.create_server(("127.0.0.1", 0)) as plain:
        port = plain.getsockname()[1]
        threading.Thread(target=lambda: plain.accept()[0].close(), daemon=True).start()
        with pytest.raises(SystemUnreachableError, match="not an emulated wafer"):
            Connection(f"127.0.0.1:{port}", load_credentials(files[0]), print)
    with pytest.raises(SystemUnreachableError, match="nothing answers"):
        Connection(f"127.0.0.1:{port}", load_credentials(files[0]), print)


@pytest.mark.parametrize(
    "version,messages,advice",
    [
        ("0.0.9", client_module.PROTOCOL, "Update the client"),
        ("99.0", client_module.PROTOCOL, "Update the server"),
        ("99.0", "other", "Update the server"),
        ("1", "other", "from the same source"),
    ],
)
def test_a_client_of_another_version_is_refused(
    serve, files, monkeypatch, version, messages, advice
):
    server = serve()
    monkeypatch.setattr(client_module, "PROTOCOL", messages)
    monkeypatch.setattr("cerebras_tf.__version__", version)
    monkeypatch.setattr("cerebras_tf.address.server.cerebras_tf", SimpleNamespace(__version__="1"))
    with pytest.raises(ConfigError, match=advice):
        Connection(f"127.0.0.1:{server.port}", load_credentials(files[0]), print)


def test_an_address_in_use_is_refused(serve):
    with pytest.raises(ConfigError, match="an address of this computer that is free"):
        serve(f"127.0.0.1:{serve().port}")


def test_a_silent_side_is_lost(serve, connect, monkeypatch):
    monkeypatch.setattr(m, "ALIVE_S", 0.05)
    monkeypatch.setattr(client_module, "_PAUSES_S", (0.01, 0.05))
    lines, server = [], serve()
    link = connect(server, lines)
    there = trained(link)
    server._worker.submit(time.sleep, 0.3)  # a request that takes longer than this
    with monkeypatch.context() as patch:
        patch.setattr(m, "SILENT_S", 0.2)
        np.testing.assert_array_equal(there.session.get("w"), WEIGHT)
    assert not any("connection is lost" in line for line in lines)
    release = threading.Event()
    result = server_module._result
    monkeypatch.setattr(server_module, "_result", lambda work: release.wait() and result(work))
    threading.Timer(0.5, release.set).start()
    with monkeypatch.context() as patch:  # the server does not show that it is there
        patch.setattr(m, "SILENT_S", 0.2)
        np.testing.assert_array_equal(there.session.get("w"), WEIGHT)
    assert any("connection is lost" in line for line in lines)


def test_a_client_that_is_silent_loses_its_connection(serve, connect, monkeypatch):
    monkeypatch.setattr("cerebras_tf.address.server._WAIT_S", 0.02)
    server = serve(keep_s=0.1)
    link = connect(server)
    RemoteWafer(link).store(SPECS)
    link._ended.set()  # nothing is sent any more
    monkeypatch.setattr(m, "SILENT_S", 0.05)
    for _ in range(300):
        if server.status()["holder"] is None:
            break
        time.sleep(0.02)
    assert server.status()["holder"] is None


def test_requests_that_wait_for_their_answers_survive_a_lost_connection(serve, connect):
    link = connect(serve())
    specs = [Variable(f"v{n:02}", TensorType("float32", (300, 100))) for n in range(20)]
    store = RemoteWafer(link).store(specs)
    contents = np.random.default_rng(0).random((20, 300, 100), np.float32)
    for number, spec in enumerate(specs):
        write(store, spec.name, contents[number])
        if number == 7:
            link.send(m.Done(), 0)  # no request: it is refused, what follows is not
        if number == 9:
            link._answers.cancel()
    with pytest.raises(DataError, match="well formed"):
        store.borrow()
    with pytest.raises(DataError, match="a store that is open"):
        link.send(m.Put(99, "v", contents[0]), 0), store.borrow()
    for number, spec in enumerate(specs):
        with reading(store, spec.name) as array:
            np.testing.assert_array_equal(array, contents[number])
        if number == 9:
            assert len(store._ahead) > 5
            link._answers.cancel()
    write(store, "v00", contents[1])
    with reading(store, "v00") as array:
        np.testing.assert_array_equal(array, contents[1])
