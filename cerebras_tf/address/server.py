"""The server of a wafer: gRPC with TLS and a token, one client at a time."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import logging
import os
import re
import secrets
import socket
import threading
import time
import urllib.parse
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Any, Optional

import grpc

import cerebras_tf
from cerebras_tf.address import messages as m
from cerebras_tf.address.codec import MAX_FRAME_BYTES, PROTOCOL, Reader, encode
from cerebras_tf.address.credentials import Credentials
from cerebras_tf.address.lease import Leases
from cerebras_tf.address.service import Service, ServiceSettings
from cerebras_tf.errors import CerebrasError, ConfigError, DataError, SystemUnreachableError
from cerebras_tf.kernels.compiled_threads import num_threads
from cerebras_tf.runtime.capacity import available_bytes
from cerebras_tf.swarmx import job
from cerebras_tf.user_files import printable

LINK = "/cerebras_tf.Wafer/Link"
STATUS = "/cerebras_tf.Wafer/Status"
# Keepalive also sets the time after which sent bytes that nobody confirms end a connection. Its
# pings do not find every lost one, hence messages.Alive.
OPTIONS = [
    ("grpc.max_receive_message_length", MAX_FRAME_BYTES),
    ("grpc.max_send_message_length", MAX_FRAME_BYTES),
    ("grpc.max_metadata_size", 1 << 14),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
]
_CONNECTIONS = 32
_HELLO_S = 10.0  # for which a new connection may send nothing
_WAIT_S = 1.0  # between looks at the queue
_STEP_S = 60.0  # for which a step of several wafers may go on when its client is lost
_ALIVE = b"".join(encode(0, m.Alive()))
_log = logging.getLogger("cerebras_tf.server")


@dataclass
class _Client:
    """The client that has the wafer: what its last request was, and the answer.

    Attributes:
        lock: of the next two.
        last: number of the last request.
        work: carries out the last requests, by number; keeps the answers, which the client may ask
            for again until it has them.
        connection: the newest.
        silent_since: when its last frame arrived; None while the server works.
    """

    lock: threading.Lock = field(default_factory=threading.Lock)
    last: int = 0
    work: dict[int, concurrent.futures.Future[Any]] = field(default_factory=dict)
    connection: Any = None
    silent_since: Optional[float] = None


class WaferServer:
    """Serves a wafer at an address.

    Args:
        address: HOST:PORT; port 0 for one that is free.
        credentials: with the private key.
        settings: what clients may use.
        keep_s: seconds for which a lease is kept after its connection ended.

    Attributes:
        port: where it listens.

    Raises:
        ConfigError: it cannot listen there.
    """

    def __init__(
        self,
        address: str,
        credentials: Credentials,
        settings: Optional[ServiceSettings] = None,
        keep_s: float = 120.0,
    ) -> None:
        self.incarnation = secrets.token_hex(8)
        self._settings = settings or ServiceSettings()
        self._service = Service(self._settings)
        self._leases = Leases(keep_s)
        self._changed = threading.Condition()
        self._client = _Client()
        self._served: Optional[str] = None  # lease whose state the service has
        # All steps run on one thread, and so do the changes of the service.
        self._worker = concurrent.futures.ThreadPoolExecutor(1, "wafer")
        self._handlers = concurrent.futures.ThreadPoolExecutor(_CONNECTIONS, "wafer-connection")
        self._server = grpc.server(
            self._handlers,
            handlers=(_Handlers(self, credentials),),
            options=[*OPTIONS, ("grpc.so_reuseport", 0)],
            maximum_concurrent_rpcs=_CONNECTIONS,
        )
        assert credentials.key is not None
        pair = [(credentials.key, credentials.certificate)]
        try:
            self.port = self._server.add_secure_port(address, grpc.ssl_server_credentials(pair))
        except RuntimeError:
            self.port = 0
        if not self.port:
            raise ConfigError(
                f"--listen: must be an address of this computer that is free. Received: {address}. "
                "Use an address that this computer has, and a port that no program uses."
            )
        self._ended = threading.Event()

    def start(self) -> None:
        """Starts to answer; returns at once."""
        self._server.start()
        threading.Thread(target=self._watch, name="wafer-leases", daemon=True).start()

    def stop(self, grace_s: float = 0.0) -> None:
        """Ends all connections, after a step that runs."""
        if self._ended.is_set():
            return
        self._ended.set()
        self._server.stop(grace_s).wait()
        self._worker.submit(self._service.end).result()
        self._worker.shutdown()
        self._handlers.shutdown(wait=False)

    def wait(self) -> None:
        """Returns when the server has stopped."""
        self._server.wait_for_termination()

    def _watch(self) -> None:
        """Ends leases that were kept long enough, and connections of clients that are lost."""
        while not self._ended.wait(_WAIT_S):
            client = self._client
            since = client.silent_since
            if since is not None and time.monotonic() - since > m.SILENT_S:
                client.silent_since = None
                _log.info("wafer: its client was silent for %.0f s", m.SILENT_S)
                client.connection.cancel()
            self._advance()

    def _advance(self) -> None:
        with self._changed:
            self._leases.advance(time.monotonic())
            holder = self._leases.holder
            lease = None if holder is None else holder.lease
            if lease == self._served:
                return
            if job.wafers() > 1:
                work = list(self._client.work.values())
                threading.Thread(target=_end_unless_done, args=(work,)).start()
            self._served, self._client = lease, _Client()
            with contextlib.suppress(RuntimeError):  # the server stops
                self._worker.submit(self._service.end)
            _log.info("wafer: %s", "free" if holder is None else f"is now of {holder.label}")
            self._changed.notify_all()

    # Connections.

    def link(self, frames: Iterator[bytes], context: Any) -> Iterator[bytes]:
        """Serves one connection of a client."""
        reader = Reader(self._max_bytes(), m.REQUESTS)
        timer = threading.Timer(_HELLO_S, context.cancel)
        timer.start()
        lease, who = "", _peer(context)
        try:
            found = _next(frames, reader)
            timer.cancel()
            if found is None:
                return
            hello = _checked(found[1])
            who = f"{_label(hello)} at {who}"
            lease = hello.lease or secrets.token_hex(16)
            is_held = yield from self._admitted(hello, lease, context)
            if is_held:
                yield from self._requests(lease, frames, reader)
        except Exception as error:
            failure = _failure(error, "connection")
            _log.info("wafer: refused %s: %s", who, printable(failure.text))
            yield from encode(0, failure)
        finally:
            timer.cancel()
            with self._changed:
                position = self._leases.position(lease)
                if position > 0 or self._client.connection in (None, context):
                    if position >= 0 and not self._ended.is_set():
                        _log.info("wafer: the connection of %s is lost", who)
                    self._leases.lose(lease, time.monotonic())

    def _admitted(self, hello: m.Hello, lease: str, context: Any) -> Generator[bytes, None, bool]:
        """Waits until the client has the wafer; returns whether it has."""
        if not hello.lease:
            with self._changed:
                self._leases.ask(lease, _label(hello))
            yield from self._queued(lease, context)
        with self._changed:
            is_held, client = self._leases.resume(lease), self._client
            if is_held:
                client.connection, client.silent_since = context, None
            if hello.lease:
                what = "is connected again" if is_held else "has no lease any more"
                _log.info("wafer: %s %s", _label(hello), what)
        welcome = m.Welcome(
            cerebras_tf.__version__,
            self.incarnation,
            lease if is_held else "",
            client.last,
            self._leases.keep_s,
            num_threads(),
            self._service.on_files,
            job.wafers(),
        )
        yield from encode(0, welcome)
        return is_held

    def _queued(self, lease: str, context: Any) -> Iterator[bytes]:
        """Returns when the client is first, or has gone; tells it its place in the queue."""
        shown, sent = -1, time.monotonic()
        while True:
            self._advance()
            with self._changed:
                position, holder = self._leases.position(lease), self._leases.holder
                gone = not context.is_active() or self._ended.is_set()
            if position <= 0 or gone:
                return
            now = time.monotonic()
            if position != shown and holder is not None:
                yield from encode(0, m.Waiting(position, holder.label, now - holder.since))
                shown = position
            elif now - sent > m.ALIVE_S:
                yield _ALIVE
                sent = now
            with self._changed:
                self._changed.wait(_WAIT_S)

    def _requests(self, lease: str, frames: Iterator[bytes], reader: Reader) -> Iterator[bytes]:
        client, sent = self._client, time.monotonic()
        for found in _each(frames, reader):
            client.silent_since = now = time.monotonic()
            if found is None or isinstance(found[1], m.Alive):
                if now - sent > m.ALIVE_S:  # during a long upload
                    yield _ALIVE
                    sent = now
                continue
            number, request = found
            client.silent_since = None
            if isinstance(request, m.Release):
                with self._changed:
                    self._leases.release(lease)
                self._advance()
                yield from encode(number, m.Done())
                return
            with client.lock:
                for known in [*client.work]:
                    if known <= max(reader.answered, number - m.MAX_PENDING):
                        del client.work[known]
                if number == client.last + 1:
                    client.work[number] = self._worker.submit(self._answer, lease, request)
                    client.last = number
                if number not in client.work:
                    raise DataError(
                        f"wafer: request {client.last + 1} must be next. Received: {number}. "
                        "Connect again."
                    )
                work = client.work[number]
            while (answer := _result(work)) is None:
                yield _ALIVE
            yield from _frames(number, answer)
            client.silent_since = time.monotonic()

    def _answer(self, lease: str, request: Any) -> Any:
        try:
            if lease != self._served:
                raise SystemUnreachableError(
                    "wafer: a client must have it for its requests. Received: a request after the "
                    "lease has ended. Connect again."
                )
            return self._service.answer(request)
        except Exception as error:
            return _failure(error, type(request).__name__)

    def _max_bytes(self) -> int:
        most = self._settings.memory_bytes
        return available_bytes() if most is None else most

    # Status.

    def status(self) -> dict[str, Any]:
        """Who has the wafer, and what it does."""
        with self._changed:
            holder, now = self._leases.holder, time.monotonic()
            return {
                "version": cerebras_tf.__version__,
                "host": socket.gethostname(),
                "holder": None if holder is None else holder.label,
                "held_s": 0.0 if holder is None else round(now - holder.since, 1),
                "connected": holder is not None and holder.lost_at is None,
                "waiting": self._leases.waiting,
                "free_bytes": available_bytes(),
                "threads": num_threads(),
                **self._service.progress(),
            }


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Finds the method of a call; calls without the token get no answer."""

    def __init__(self, server: WaferServer, credentials: Credentials) -> None:
        self._credentials = credentials
        self._methods = {
            LINK: grpc.stream_stream_rpc_method_handler(server.link),
            STATUS: grpc.unary_unary_rpc_method_handler(
                lambda request, context: json.dumps(server.status()).encode()
            ),
        }
        self._denied = grpc.unary_unary_rpc_method_handler(_deny)

    def service(self, details: Any) -> Any:
        """See grpc.GenericRpcHandler."""
        sent = dict(details.invocation_metadata).get("authorization", "")
        if not self._credentials.accepts(sent if isinstance(sent, str) else ""):
            return self._denied
        return self._methods.get(details.method)


def _deny(request: bytes, context: Any) -> bytes:
    _log.info("wafer: refused %s: another token", _peer(context))
    context.abort(grpc.StatusCode.UNAUTHENTICATED, "the token is not that of this wafer")
    raise AssertionError("abort raises")


def _failure(error: Exception, what: str) -> m.Failure:
    """The message of an error; the traceback of one that is not ours is logged."""
    if not isinstance(error, CerebrasError):
        _log.exception("%s failed", what)
    return m.failure_of(error)


def _result(work: concurrent.futures.Future[Any]) -> Any:
    """The answer of a request; None if it takes longer than a while."""
    try:
        return work.result(m.ALIVE_S)
    except concurrent.futures.TimeoutError:
        return None


def _frames(number: int, answer: Any) -> Iterator[bytes]:
    """The frames of an answer; of the error if it cannot be sent."""
    frames = encode(number, answer)
    try:
        first = next(frames)
    except CerebrasError as error:
        frames = encode(number, m.failure_of(error))
        first = next(frames)
    yield first
    yield from frames


def _each(frames: Iterator[bytes], reader: Reader) -> Iterator[Optional[tuple[int, Any]]]:
    """For every frame, number and message if it completes one; else None."""
    with contextlib.suppress(grpc.RpcError):  # the connection has ended
        for frame in frames:
            yield reader.feed(frame)


def _next(frames: Iterator[bytes], reader: Reader) -> Optional[tuple[int, Any]]:
    """The number and the message that arrive next; None at the end."""
    return next(filter(None, _each(frames, reader)), None)


def _end_unless_done(work: list[concurrent.futures.Future[Any]]) -> None:
    """Ends the job if a step of a lost client does not end, as it waits for another wafer."""
    if concurrent.futures.wait(work, _STEP_S).not_done:
        _log.error("wafer: a client was lost in a step of several wafers; the job ends")
        os._exit(1)


def _checked(hello: Any) -> m.Hello:
    """The first message of a connection, of a client that is new enough."""
    if not isinstance(hello, m.Hello):
        raise DataError("wafer: a connection must begin with Hello. Received: another message.")
    here, there = cerebras_tf.__version__, hello.version
    if here != there:
        side = "the client" if _numbers(there) < _numbers(here) else "the server"
        raise ConfigError(
            f"wafer: both sides must have the same version of cerebras_tf. Received: {there} from "
            f"the client; the server has {here}. Update {side}."
        )
    if hello.protocol != PROTOCOL:
        raise ConfigError(
            f"wafer: both sides must have the same version of cerebras_tf. Received: {here} with "
            "other messages from the client. Install both from the same source."
        )
    return hello


def _label(hello: m.Hello) -> str:
    return printable(hello.label)[:200]


def _peer(context: Any) -> str:
    """Address and port of a client."""
    return urllib.parse.unquote(context.peer()).partition(":")[2]


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"[0-9]{1,9}", version)]
