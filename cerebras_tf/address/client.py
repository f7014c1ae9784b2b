"""The connection of a client to the server of a wafer.

A request that was sent and not answered when the connection broke is sent again, with its number,
on the next connection. The server carries it out once.
"""

from __future__ import annotations

import atexit
import contextlib
import getpass
import os
import queue
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Optional

import grpc

import cerebras_tf
from cerebras_tf.address import messages as m
from cerebras_tf.address.codec import PROTOCOL, Reader, encode
from cerebras_tf.address.credentials import TLS_NAME, Credentials, load_credentials
from cerebras_tf.address.remote import RemoteWafer
from cerebras_tf.address.server import LINK, OPTIONS, STATUS
from cerebras_tf.errors import CerebrasError, ConfigError, SystemUnreachableError
from cerebras_tf.user_files import parse_json

_CONNECT_S = 5.0
_ALIVE = b"".join(encode(0, m.Alive()))
_PAUSES_S = (0.2, 10.0)  # between attempts to connect again: the first and the longest

Log = Callable[[str], Any]


class Connection:
    """A client's lease of a wafer. It waits until the wafer is free.

    Args:
        address: HOST:PORT.
        credentials: of a client.
        log: logs a line.

    Attributes:
        threads: threads of the server's kernels.
        on_files: whether variables are stored in files there.

    Raises:
        SystemUnreachableError: no wafer answers there.
        ConfigError: the token is wrong, or the versions differ too much.
    """

    def __init__(self, address: str, credentials: Credentials, log: Log) -> None:
        self._address, self._credentials, self._log = address, credentials, log
        self._lock, self._process = threading.RLock(), os.getpid()
        self._incarnation = self._lease = ""
        self._number = 0
        self._keep_s = 0.0
        self._lost: Optional[CerebrasError] = None
        self._requests: queue.SimpleQueue[Optional[bytes]] = queue.SimpleQueue()
        self._answers: Any = None
        self._channel: Any = None
        self._reader = Reader(1 << 62, m.ANSWERS)
        self._sending = threading.Lock()
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
                raise _unreachable(address, error) from error
            raise
        self._incarnation, self._lease = welcome.incarnation, welcome.lease
        self._keep_s, self.threads = welcome.keep_s, welcome.threads
        self.on_files = welcome.on_files
        self._number = welcome.last
        log(f"wafer at {address}: cerebras_tf {welcome.version}, {welcome.threads} threads")

    @property
    def is_lost(self) -> bool:
        """Whether it cannot be used any more."""
        return self._lost is not None

    def call(self, request: Any) -> Any:
        """Sends a request and returns its answer; raises the error that the server had.

        Raises:
            SystemUnreachableError: the connection is lost, or the server was restarted.
        """
        with self._lock:
            if self._lost is not None:
                raise self._lost
            try:
                if self._answers is None:  # an earlier call was interrupted
                    self._reconnect(None)
                self._number += 1
                answer = self._exchange(request)
            except BaseException:
                self._disconnect()
                raise
        if isinstance(answer, m.Failure):
            raise m.error_of(answer)
        return answer

    def _exchange(self, request: Any) -> Any:
        frames = list(encode(self._number, request))
        while True:
            try:
                self._send(frames)
                number, answer = self._next()
            except grpc.RpcError as error:
                self._reconnect(error)
                continue
            if number == self._number:
                return answer
            if number == 0:  # the server ends the connection
                raise m.error_of(answer)

    def _send(self, frames: Iterable[bytes]) -> None:
        with self._sending:  # frames of one message follow each other
            for frame in frames:
                self._requests.put(frame)

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
            self._send([_ALIVE])
            since, answers = self._silent_since, self._answers
            if since is not None and time.monotonic() - since > m.SILENT_S and answers is not None:
                answers.cancel()

    def _connect(self) -> m.Welcome:
        """Opens a connection and waits for the wafer."""
        self._disconnect()
        trusted = grpc.ssl_channel_credentials(self._credentials.certificate)
        options = [*OPTIONS, ("grpc.ssl_target_name_override", TLS_NAME)]
        options += [("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1)]
        self._channel = grpc.secure_channel(self._address, trusted, options)
        requests: queue.SimpleQueue[Optional[bytes]] = queue.SimpleQueue()
        self._requests, self._reader = requests, Reader(1 << 62, m.ANSWERS)
        metadata = [("authorization", self._credentials.authorization)]
        self._answers = self._channel.stream_stream(LINK)(
            iter(requests.get, None), metadata=metadata
        )
        label = f"{_user()} on {socket.gethostname()}, process {os.getpid()}"
        hello = m.Hello(PROTOCOL, cerebras_tf.__version__, label, self._lease)
        self._send(encode(0, hello))
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
            except grpc.RpcError as failed:
                if time.monotonic() > end:
                    raise self._give_up(
                        f"no answer for {self._keep_s:.0f} s. Restart the server, or check the "
                        "network"
                    ) from failed
                time.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(2 * pause, longest)
        if welcome.incarnation != self._incarnation:
            raise self._give_up("a server that was restarted, without the variables of this run")
        if not welcome.lease:
            raise self._give_up("a lease that has ended, as the connection was lost for too long")
        if error is None:
            self._number = welcome.last
        else:
            self._log(f"wafer at {self._address}: connected again")

    def _give_up(self, received: str) -> CerebrasError:
        self._lost = SystemUnreachableError(
            f"wafer at {self._address}: must keep the variables until the run ends. Received: "
            f"{received}. Run the same command again to continue from the last checkpoint."
        )
        return self._lost

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
            if self._answers is not None and self._lost is None:
                with contextlib.suppress(grpc.RpcError, CerebrasError):
                    self._number += 1
                    self._send(encode(self._number, m.Release()))
                    self._next()
            self._lost = self._lost or SystemUnreachableError(
                f"wafer at {self._address}: the connection was closed. Connect again."
            )
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
        f"cs_ip: a wafer must answer at the address. Received: {address}; {error.details()}. Start "
        "one there with `cerebras-tf serve`."
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
        ) from error
    except TimeoutError:
        finding = f"nothing answers there within {_CONNECT_S:g} s"
    except (ssl.SSLError, ConnectionResetError):
        finding = "something listens there, but it is not an emulated wafer"
    except OSError as error:
        finding = f"nothing answers there ({error.strerror or error})"
    raise SystemUnreachableError(
        f"cs_ip: a wafer must answer at the address. Received: {address}; {finding}. Start one "
        "there with `cerebras-tf serve`, or leave cs_ip empty to use the wafer in this process."
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
    trusted = grpc.ssl_channel_credentials(credentials.certificate)
    options = [*OPTIONS, ("grpc.ssl_target_name_override", TLS_NAME)]
    metadata = [("authorization", credentials.authorization)]
    try:
        with grpc.secure_channel(address, trusted, options) as channel:
            call = channel.unary_unary(STATUS)
            text = call(b"", metadata=metadata, timeout=_CONNECT_S)
            found: dict[str, Any] = parse_json(text, dict)
            return found
    except grpc.RpcError as error:
        raise _unreachable(address, error) from error
