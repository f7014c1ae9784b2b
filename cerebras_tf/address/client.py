"""The connection of a client to the server of a wafer.

Requests that were sent and not answered when the connection broke are sent again, with their
numbers, on the next connection. The server carries out each of them once, in order.
"""

from __future__ import annotations

import atexit
import contextlib
import getpass
import itertools
import os
import queue
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Optional

import grpc

import cerebras_tf
from cerebras_tf.address import messages as m
from cerebras_tf.address.codec import PROTOCOL, Reader, encode
from cerebras_tf.address.credentials import TLS_NAME, Credentials, load_credentials
from cerebras_tf.address.remote import RemoteWafer
from cerebras_tf.address.server import LINK, OPTIONS, STATUS
from cerebras_tf.errors import CerebrasError, ConfigError, SystemUnreachableError
from cerebras_tf.quantities import counted
from cerebras_tf.swarmx import job
from cerebras_tf.user_files import parse_json

_CONNECT_S = 5.0
_ALIVE = b"".join(encode(0, m.Alive()))
_PAUSES_S = (0.2, 10.0)  # between attempts to connect again: the first and the longest

Log = Callable[[str], Any]


@dataclass(eq=False)
class _Pending:
    """A request that is sent.

    Attributes:
        size: bytes of the arrays that are sent, or that the answer has.
        is_read: whether the answer is asked for; else an error is raised by a later request.
        answer: None until it is there.
    """

    request: Any
    size: int = 0
    is_read: bool = True
    answer: Any = None


class Connection:
    """A client's lease of a wafer. It waits until the wafer is free.

    Args:
        address: HOST:PORT.
        credentials: of a client.
        log: logs a line.

    Attributes:
        threads: threads of the server's kernels.
        on_files: whether variables are stored in files there.
        wafers: of the job of servers.

    Raises:
        SystemUnreachableError: no wafer answers there.
        ConfigError: the token is wrong, or the versions differ too much.
    """

    def __init__(self, address: str, credentials: Credentials, log: Log) -> None:
        self._address, self._credentials, self._log = address, credentials, log
        self._lock, self._process = threading.RLock(), os.getpid()
        self._incarnation = self._lease = ""
        self._number = 0
        self._pending: dict[int, _Pending] = {}
        # The error with which the server ended the connection, of the first that it did not take.
        self._refused: Optional[m.Failure] = None
        self._failure: Optional[m.Failure] = None  # of a request whose answer is not asked for
        self._keep_s = 0.0
        self._lost = ""  # why it cannot be used any more
        self._requests: queue.SimpleQueue[Optional[Iterator[bytes]]] = queue.SimpleQueue()
        self._answers: Any = None
        self._channel: Any = None
        self._reader = Reader(1 << 62, m.ANSWERS)
        self._silent_since: Optional[float] = None  # while an answer is awaited
        self._ended = threading.Event()
        _check_certificate(address, credentials)
        threading.Thread(target=self._watch, name="wafer-alive", daemon=True).start()
        try:
            welcome = self._connect()
        except BaseException as error:
            self._ended.set()
            self._disconnect()
            if isinstance(error, grpc.RpcError):
                raise _unreachable(address, error) from None
            raise
        self._incarnation, self._lease = welcome.incarnation, welcome.lease
        self._keep_s, self.threads = welcome.keep_s, welcome.threads
        self.on_files, self.wafers = welcome.on_files, welcome.wafers
        self._number = welcome.last
        log(f"wafer at {address}: cerebras_tf {welcome.version}, {counted(self.threads, 'thread')}")

    @property
    def is_lost(self) -> bool:
        """Whether it cannot be used any more."""
        return bool(self._lost)

    def call(self, request: Any) -> Any:
        """Sends a request and returns its answer; raises the error that the server had.

        Raises:
            SystemUnreachableError: the connection is lost, or the server was restarted.
        """
        return self.begin(request)()

    def begin(self, request: Any, size: int = 0) -> Callable[[], Any]:
        """Sends a request; the result waits for its answer, and returns it or raises the error.

        Args:
            size: bytes of the arrays of the answer.
        """
        sent = self._begin(_Pending(request, size))
        return lambda: self._result(sent)

    def send(self, request: Any, size: int) -> None:
        """Sends a request without waiting for its answer; its error is raised by a later request.

        Args:
            request: its arrays must not change any more.
            size: bytes of its arrays.
        """
        self._begin(_Pending(request, size, is_read=False))

    def _begin(self, new: _Pending) -> _Pending:
        with self._connected():
            while self._pending and (
                len(self._pending) >= m.MAX_PENDING
                or sum(each.size for each in self._pending.values()) + new.size
                > m.MAX_PENDING_BYTES
            ):
                self._receive()
            self._raise_failure()
            frames = _begun(encode(self._number + 1, new.request, self._answered()))
            self._number += 1
            self._pending[self._number] = new
            self._requests.put(frames)
        return new

    def _result(self, sent: _Pending) -> Any:
        if sent.answer is None:
            with self._connected():
                while sent.answer is None:
                    self._receive()
        self._raise_failure()
        if isinstance(sent.answer, m.Failure):
            raise m.error_of(sent.answer)
        return sent.answer

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise m.error_of(failure)

    def _answered(self) -> int:
        """Number of the last request up to which all are answered."""
        return next(iter(self._pending), self._number + 1) - 1

    @contextlib.contextmanager
    def _connected(self) -> Iterator[None]:
        """Within: there is a connection, and no other thread uses it."""
        with self._lock:
            if self._lost:
                raise SystemUnreachableError(self._lost)
            try:
                if self._answers is None:  # an earlier call was interrupted
                    self._reconnect(None)
                yield
            except BaseException as error:
                self._disconnect()
                raise error from None  # the user needs no error of gRPC before it

    def _receive(self) -> None:
        """Waits for the next answer."""
        try:
            number, answer = self._next()
        except grpc.RpcError as error:
            self._reconnect(error)
            return
        if number == 0:  # the server ends the connection
            self._refused = answer
            raise m.error_of(answer)
        sent = self._pending.pop(number, None)
        if sent is None:
            return
        sent.answer = answer
        if isinstance(answer, m.Failure) and not sent.is_read:
            self._failure = self._failure or answer

    def _next(self) -> tuple[int, Any]:
        self._silent_since = time.monotonic()
        try:
            for frame in self._answers:
                self._silent_since = time.monotonic()
                found = self._reader.feed(frame)
                if found is not None and not isinstance(found[1], m.Alive):
                    return found
        finally:
            self._silent_since = None
        raise _Ended()

    def _watch(self) -> None:
        """Shows the server that this client is there; ends a connection if it does not answer."""
        while not self._ended.wait(m.ALIVE_S):
            self._requests.put(iter([_ALIVE]))
            since, answers = self._silent_since, self._answers
            if since is not None and time.monotonic() - since > m.SILENT_S and answers is not None:
                answers.cancel()

    def _connect(self) -> m.Welcome:
        """Opens a connection and waits for the wafer."""
        self._disconnect()
        self._channel = _channel(self._address, self._credentials)
        label = f"{_user()} on {socket.gethostname()}, process {os.getpid()}"
        hello = m.Hello(PROTOCOL, cerebras_tf.__version__, label, self._lease)
        requests: queue.SimpleQueue[Optional[Iterator[bytes]]] = queue.SimpleQueue()
        requests.put(encode(0, hello))  # before other threads can send
        self._requests, self._reader = requests, Reader(1 << 62, m.ANSWERS)
        self._answers = self._channel.stream_stream(LINK)(
            itertools.chain.from_iterable(iter(requests.get, None)),
            metadata=_metadata(self._credentials),
        )
        while True:
            _, answer = self._next()
            if isinstance(answer, m.Welcome):
                return answer
            if isinstance(answer, m.Failure):
                raise m.error_of(answer)
            self._log(
                f"wafer at {self._address}: {answer.holder} has it, since {answer.held_s:.0f} s; "
                f"this client is number {answer.position} in the queue"
            )

    def _reconnect(self, error: Optional[grpc.RpcError]) -> None:
        """Connects again, for as long as the server keeps the lease.

        Raises:
            SystemUnreachableError: it does not answer any more, or has lost the state.
        """
        if error is not None:
            if _is_refused(error):
                raise _unreachable(self._address, error)
            self._log(f"wafer at {self._address}: the connection is lost; connecting again ...")
        end = time.monotonic() + self._keep_s
        pause, longest = _PAUSES_S
        while True:
            try:
                welcome = self._connect()
                break
            except grpc.RpcError:
                if time.monotonic() > end:
                    raise self._give_up(
                        f"no answer for {self._keep_s:.0f} s. Restart the server, or check the "
                        "network"
                    ) from None
                time.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(2 * pause, longest)
        if welcome.incarnation != self._incarnation:
            raise self._give_up("a server that was restarted, without the variables of this run")
        if not welcome.lease:
            raise self._give_up("a lease that has ended, as the connection was lost for too long")
        failure, self._refused = self._refused, None
        refused = None if failure is None else self._pending.pop(welcome.last + 1, None)
        if refused is not None:
            refused.answer = failure
            self._number -= 1
            left = self._pending.values()
            self._pending = dict(enumerate(left, self._number + 1 - len(left)))
        for number, each in self._pending.items():
            self._requests.put(encode(number, each.request, self._answered()))
        if error is not None:
            self._log(f"wafer at {self._address}: connected again")

    def _give_up(self, received: str) -> CerebrasError:
        self._lost = (
            f"wafer at {self._address}: must keep the variables until the run ends. Received: "
            f"{received}. Run the same command again to continue from the last checkpoint."
        )
        return SystemUnreachableError(self._lost)

    def _disconnect(self) -> None:
        self._requests.put(None)
        if self._answers is not None:
            self._answers.cancel()
        if self._channel is not None:
            self._channel.close()
        self._answers = self._channel = None

    def close(self) -> None:
        """Gives the wafer back."""
        if os.getpid() != self._process or not self._lock.acquire(timeout=_CONNECT_S):
            return
        try:
            if self._answers is not None and not self._lost:
                with contextlib.suppress(grpc.RpcError, CerebrasError):
                    last = self._number + 1
                    self._requests.put(encode(last, m.Release()))
                    while self._next()[0] != last:
                        pass
            if not self._lost:
                self._lost = f"wafer at {self._address}: the connection was closed. Connect again."
            self._ended.set()
            self._disconnect()
        finally:
            self._lock.release()


class _Ended(grpc.RpcError):  # type: ignore[misc]
    """The server has ended a connection without an error."""

    def code(self) -> Any:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return "the server ended the connection"


def _channel(address: str, credentials: Credentials) -> Any:
    trusted = grpc.ssl_channel_credentials(credentials.certificate)
    options = [*OPTIONS, ("grpc.ssl_target_name_override", TLS_NAME)]
    options += [("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1)]
    return grpc.secure_channel(address, trusted, options)


def _metadata(credentials: Credentials) -> list[tuple[str, str]]:
    return [("authorization", credentials.authorization)]


def _begun(frames: Iterator[bytes]) -> Iterator[bytes]:
    """Frames whose first is made now; raises the error of a message that cannot be sent."""
    return itertools.chain([next(frames)], frames)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _is_refused(error: grpc.RpcError) -> bool:
    refused = grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNIMPLEMENTED
    return error.code() in refused


def _unreachable(address: str, error: grpc.RpcError) -> CerebrasError:
    if error.code() is grpc.StatusCode.UNAUTHENTICATED:
        return ConfigError(
            "credentials_path: must be a file with the token of the wafer. Received: another token "
            f"for {address}. Use the file that was made together with that of the server."
        )
    return SystemUnreachableError(
        f"wafer at {address}: must answer. Received: {error.details()}. Start it there with "
        "`cerebras-tf serve`, or use another address."
    )


def _check_certificate(address: str, credentials: Credentials) -> None:
    """Raises an error that states why a TLS connection to an address is impossible."""
    host, port = address.rsplit(":", 1)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=credentials.certificate.decode())
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S) as plain,
            context.wrap_socket(plain, server_hostname=TLS_NAME),
        ):
            return
    except (socket.gaierror, UnicodeError):  # which labels of odd length cause
        finding = f"the host name {host!r} is not known"
    except ssl.SSLCertVerificationError as error:
        raise ConfigError(
            f"credentials_path: must have the certificate of the wafer at {address}. Received: "
            f"another one ({error.verify_message}). Use the file that was made together with that "
            "of the server."
        ) from None
    except TimeoutError:
        finding = f"nothing answers there within {_CONNECT_S:g} s"
    except (ssl.SSLError, ConnectionResetError):
        finding = "something listens there, but it is not an emulated wafer"
    except OSError as error:
        finding = f"nothing answers there ({error.strerror or error})"
    raise SystemUnreachableError(
        f"cs_ip: a wafer must answer at the address. Received: {address}; {finding}. Start one "
        "there with `cerebras-tf serve`, or set cs_ip to 127.0.0.1 for the wafer in this process."
    )


_connections: dict[tuple[str, str], Connection] = {}
_connecting = threading.Lock()


def wafer_at(address: str, credentials_path: str, log: Log) -> RemoteWafer:
    """The wafer at an address; one lease serves everything that this process runs on it.

    Args:
        address: HOST:PORT.
        credentials_path: file of a client's credentials.
        log: logs a line.

    Raises:
        SystemUnreachableError: no wafer answers there.
        ConfigError: the credentials are wrong, or the versions differ too much.
    """
    key = address, os.path.abspath(credentials_path)
    with _connecting:
        found = _connections.get(key)
        if found is None or found.is_lost:
            found = Connection(address, load_credentials(credentials_path), log)
            _connections[key] = found
    if job.wafers() not in (1, found.wafers):
        raise ConfigError(
            f"cs_ip: as many wafers must be there as this job has processes, {job.wafers()}. "
            f"Received: {address} with {found.wafers}. Start `cerebras-tf serve` there with "
            "csrun_wse --num_csx, or use one process here."
        )
    return RemoteWafer(found)


@atexit.register
def release_wafers() -> None:
    """Gives back all wafers that this process has."""
    with _connecting:
        for connection in _connections.values():
            connection.close()
        _connections.clear()


def status_of(address: str, credentials: Credentials) -> dict[str, Any]:
    """What the server of a wafer does; see WaferServer.status."""
    _check_certificate(address, credentials)
    try:
        with _channel(address, credentials) as channel:
            call = channel.unary_unary(STATUS)
            text = call(b"", metadata=_metadata(credentials), timeout=_CONNECT_S)
            found: dict[str, Any] = parse_json(text, dict)
            return found
    except grpc.RpcError as error:
        raise _unreachable(address, error) from None
