"""Runs training at an address through schedules of faults; `python -m tests.address.schedules N`.

A schedule, by its seed, cuts the connection after random numbers of bytes, and kills or stops the
server or the client. Both are started again as a user would: the client continues from its
checkpoint. A run passes if losses and variables are those of an undisturbed run bit for bit,
within a time, and if nothing is left over.

This process starts no threads, so that it can fork servers and clients that have all modules.
"""

from __future__ import annotations

import contextlib
import os
import random
import selectors
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from cerebras_tf.address.choose import quiet_grpc

quiet_grpc()

from cerebras_tf.address import client as client_module
from cerebras_tf.address import messages as m
from cerebras_tf.address import server as server_module
from cerebras_tf.address.client import Connection
from cerebras_tf.address.credentials import load_credentials, new_credentials
from cerebras_tf.address.remote import RemoteWafer
from cerebras_tf.address.service import ServiceSettings
from cerebras_tf.errors import SystemUnreachableError
from cerebras_tf.ir import TensorType, Variable
from cerebras_tf.memoryx.process_folder import remove_stores
from cerebras_tf.memoryx.store import write
from cerebras_tf.runtime.client import SessionClient
from tests.runtime.test_session import WEIGHT, Compiler, batch

STEPS, SAVED_EVERY = 12, 4
LIMIT_S = 60.0
KINDS = ("cut", "cut", "kill server", "kill client", "stop server", "stop client")
_LOST = 3  # exit code of a client that must be started again


def quicken():
    """Makes all waits of both sides short."""
    client_module._PAUSES_S = (0.01, 0.1)
    server_module._WAIT_S = 0.05
    m.ALIVE_S, m.SILENT_S = 0.2, 1.5


def serve(port, files, folder):
    """A server, until SIGTERM."""
    remove_stores(folder)
    settings = ServiceSettings(memoryx_dir=str(folder), memoryx_bytes=1 << 20)
    credentials = load_credentials(files[1], serves=True)
    server = server_module.WaferServer(f"127.0.0.1:{port}", credentials, settings, keep_s=0.5)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    server.start()
    try:
        while True:
            time.sleep(60)
    finally:
        server.stop()


def train(port, files, folder):
    """Trains from the last checkpoint in a folder to the end; returns the exit code."""
    path = folder / "checkpoint.npz"
    try:
        link = Connection(f"127.0.0.1:{port}", load_credentials(files[0]), lambda line: None)
        wafer = RemoteWafer(link)
        store = wafer.store([Variable("w", TensorType("float32", (4, 4)), True)])
        saved = dict(np.load(path)) if path.exists() else {"w": WEIGHT, "losses": np.empty(0)}
        write(store, "w", saved["w"])
        losses = list(saved["losses"])
        client = SessionClient(wafer.session(store, True), Compiler(), len(losses))
        for step in range(len(losses), STEPS):
            losses.append(client.run({"x": batch(8 + step % 3, step)})["loss"])
            if len(losses) % SAVED_EVERY == 0:
                partial = path.with_name("partial.npz")
                np.savez(partial, w=client.session.get("w"), losses=np.array(losses))
                os.replace(partial, path)
        link.close()
        return 0
    except SystemUnreachableError:
        return _LOST


def started(function, *given):
    """A process that calls a function; its identity."""
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        code = function(*given) or 0
    except SystemExit as ended:
        code = ended.code or 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


class Schedule:
    """A run with the faults of a seed."""

    def __init__(self, seed, files, folder):
        self.files, self.folder, self.faults = files, folder, []
        self.checkpoints, self.stores = folder / "client", folder / "server"
        self.checkpoints.mkdir(), self.stores.mkdir()
        rng = random.Random(seed)
        # After how many more bytes, what happens, and for how long a process stops.
        self.plan = [
            (rng.randrange(7000), rng.choice(KINDS), rng.choice((0.05, 0.3, 2.0)))
            for _ in range(rng.randrange(1, 5))
        ]
        self.selector, self.pairs, self.stopped = selectors.DefaultSelector(), {}, {}
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.selector.register(self.listener, selectors.EVENT_READ)
        self.started_s = time.monotonic()

    def run(self):
        """Returns what went wrong; "" for nothing."""
        self.server, self.client = self.new_server(), self.new_client()
        try:
            return self.played() or self.left_over()
        finally:
            for process in (self.server, self.client):
                if process:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process, signal.SIGKILL)
                    os.waitpid(process, 0)
            self.cut()
            self.listener.close()
            self.selector.close()

    def new_server(self):
        return started(serve, self.port, self.files, self.stores)

    def new_client(self):
        proxy = self.listener.getsockname()[1]
        return started(train, proxy, self.files, self.checkpoints)

    def played(self):
        while time.monotonic() - self.started_s < LIMIT_S:
            for key, _ in self.selector.select(0.02):
                self.pass_on(key.fileobj)
            for process, end in list(self.stopped.items()):
                if time.monotonic() > end:
                    del self.stopped[process]
                    os.kill(process, signal.SIGCONT)
            found, status = os.waitpid(self.client, os.WNOHANG)
            if found:
                code = os.waitstatus_to_exitcode(status)
                self.stopped.pop(self.client, None)
                self.client = 0
                if code == 0:
                    return ""
                if code not in (_LOST, -signal.SIGKILL):
                    return f"the client ended with {code}"
                self.client = self.new_client()
        return f"no end within {LIMIT_S:g} s"

    def pass_on(self, source):
        """Passes bytes between client and server, until the next fault."""
        if source is self.listener:
            near, far = source.accept()[0], socket.socket()
            try:
                far.connect(("127.0.0.1", self.port))
            except ConnectionRefusedError:
                near.close()
                return
            for one, other in ((near, far), (far, near)):
                self.pairs[one] = other
                self.selector.register(one, selectors.EVENT_READ)
            return
        if source not in self.pairs:
            return
        try:
            content = source.recv(1 << 16)
            if self.plan:
                (left, kind, time_s), *later = self.plan
                if len(content) > left:
                    self.plan = later
                    self.pairs[source].sendall(content[:left])
                    self.happen(kind, time_s)
                    if kind == "cut":
                        content = b""
                    else:
                        content = content[left:]
                else:
                    self.plan[0] = left - len(content), kind, time_s
            if content:
                self.pairs[source].sendall(content)
                return
        except OSError:
            pass
        self.close(source)

    def happen(self, kind, time_s):
        self.faults.append(kind)
        process = self.server if kind.endswith("server") else self.client
        if kind == "cut":
            self.cut()
        elif kind.startswith("stop"):
            os.kill(process, signal.SIGSTOP)
            self.stopped[process] = time.monotonic() + time_s
        else:
            self.stopped.pop(process, None)
            os.kill(process, signal.SIGKILL)
            if kind == "kill server":
                os.waitpid(process, 0)
                self.server = self.new_server()

    def close(self, source):
        for each in (source, self.pairs.pop(source, None)):
            if each is not None and each.fileno() >= 0:
                self.pairs.pop(each, None)
                self.selector.unregister(each)
                each.close()

    def cut(self):
        for each in list(self.pairs):
            self.close(each)

    def left_over(self):
        """Ends the server; returns what is left."""
        os.kill(self.server, signal.SIGTERM)
        _, status = os.waitpid(self.server, 0)
        self.server = 0
        if status:
            return f"the server ended with {os.waitstatus_to_exitcode(status)}"
        files = [*self.stores.rglob("*"), *self.checkpoints.glob("partial*")]
        return f"left: {files}" if files else ""

    def results(self):
        with np.load(self.checkpoints / "checkpoint.npz") as found:
            return found["losses"].tobytes() + found["w"].tobytes()


def main(count, first=0):
    quicken()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = folder / "wafer.pem", folder / "wafer-server.pem"
        new_credentials(*files)
        whole, failed, faults, longest = None, 0, 0, 0.0
        for seed in (None, *range(first, first + count)):
            (folder / str(seed)).mkdir()
            run = Schedule(seed or 0, files, folder / str(seed))
            if seed is None:
                run.plan = []
            wrong = run.run()
            whole = run.results() if seed is None else whole
            if not wrong and run.results() != whole:
                wrong = "other results"
            took = time.monotonic() - run.started_s
            faults, longest = faults + len(run.faults), max(longest, took)
            if wrong:
                failed += 1
                print(f"schedule {seed}: {wrong}; {run.faults}, {took:.1f} s", flush=True)
        print(f"{count} schedules, {faults} faults, {failed} failed; longest {longest:.1f} s")
        return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
