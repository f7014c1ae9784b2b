"""Parses addresses of wafers, and checks whether a wafer can be reached."""

from __future__ import annotations

import ipaddress
import socket
from typing import Optional

from cerebras_tf.errors import ConfigError, SystemUnreachableError

DEFAULT_PORT = 9000
_CONNECT_TIMEOUT_S = 3.0


def split_address(address: str) -> Optional[tuple[str, int]]:
    """Splits `HOST`, `HOST:PORT`, `[IPV6]:PORT` or a bare IPv6 address.

    Returns:
      Host and port, by default 9000. None if the host is empty or the port is not a number from 1
      to 65535.
    """
    host, port_text = address, str(DEFAULT_PORT)
    if address.startswith("["):
        host, end, rest = address[1:].partition("]")
        host = host if end else ""
        port_text = rest[1:] if rest.startswith(":") else rest or port_text
    elif address.count(":") == 1:
        host, port_text = address.split(":")
    if not host or not port_text.isdecimal() or not 1 <= int(port_text) <= 65535:
        return None
    return host, int(port_text)


def address_problem(address: str) -> Optional[str]:
    """A `check` of schema.field: an address must be blank or well formed."""
    if not address.strip() or split_address(address.strip()):
        return None
    return "must be an address, HOST or HOST:PORT, or empty for the wafer in this process."


def normalize_cs_ip(cs_ip: Optional[str]) -> Optional[str]:
    """Returns `HOST:PORT` (`[HOST]:PORT` for IPv6), or None if `cs_ip` is None or blank.

    Raises:
      ConfigError: the address is malformed.
    """
    if cs_ip is None or not cs_ip.strip():
        return None
    found = split_address(cs_ip.strip())
    if found is None:
        raise ConfigError(f"cs_ip: {address_problem(cs_ip)} Received: {cs_ip!r}.")
    host, port = found
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_in_process(cs_ip: Optional[str]) -> bool:
    """Whether `cs_ip` means the wafer emulated in this process.

    These are None, an empty address, and a loopback address at the wafers' port.
    """
    address = normalize_cs_ip(cs_ip)
    found = address and split_address(address)
    if not found:
        return True
    host, port = found
    if port != DEFAULT_PORT:
        return False
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:  # a host name
        return False


def check_wafer_address(cs_ip: Optional[str], credentials_path: Optional[str] = None) -> None:
    """Checks that `cs_ip` is the wafer in this process, or has credentials.

    Raises:
      SystemUnreachableError: `cs_ip` names another computer or port. The message states whether
        anything listens there, after a TCP connection of at most 3 s.
    """
    if is_in_process(cs_ip) or credentials_path is not None:
        return
    address = normalize_cs_ip(cs_ip)
    found = address and split_address(address)
    assert found
    try:
        with socket.create_connection(found, timeout=_CONNECT_TIMEOUT_S):
            finding = "something listens there, but credentials_path is not set"
    except (socket.gaierror, UnicodeError):  # which labels of odd length cause
        finding = f"the host name {found[0]!r} is not known"
    except TimeoutError:
        finding = f"nothing answers there within {_CONNECT_TIMEOUT_S:g} s"
    except OSError as error:
        finding = f"nothing answers there ({error.strerror or error})"
    raise SystemUnreachableError(
        f"cs_ip: a wafer must answer at the address. Received: {address}; {finding}. Start one "
        "there with `cerebras-tf serve` and set credentials_path, or set cs_ip to 127.0.0.1 to use "
        "the wafer emulated in this process."
    )
