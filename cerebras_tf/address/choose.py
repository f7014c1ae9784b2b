"""Chooses the wafer: the one in this process, or one at an address."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

from cerebras_tf.config.address import check_wafer_address, normalize_cs_ip
from cerebras_tf.errors import ConfigError
from cerebras_tf.installing import pip_install
from cerebras_tf.runtime.protocol import Wafer
from cerebras_tf.swarmx import job

_POLL_S = 0.1
_MAX_PORT = 65535


def quiet_grpc() -> None:
    """Sets what gRPC reads when it is imported.

    Processes that the input pipeline forks do not use it, and failed handshakes are no news.
    """
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def choose_wafer(
    cs_ip: Optional[str], credentials_path: Optional[str], log: Callable[[str], Any]
) -> Optional[Wafer]:
    """Connects to the wafer at an address; waits while another client has it.

    Of a job, each process connects to the port of its rank: the given one, the next, and so on.

    Args:
        cs_ip: the address.
        credentials_path: file of a client's credentials.
        log: logs a line.

    Returns:
        The wafer; None for that of this process.

    Raises:
        SystemUnreachableError: no wafer answers there.
        ConfigError: the credentials are wrong or missing, or gRPC is not installed.
    """
    address = normalize_cs_ip(cs_ip)
    if credentials_path is None or address is None:
        check_wafer_address(cs_ip)
        return None
    quiet_grpc()
    try:
        from cerebras_tf.address.client import wafer_at
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"cs_ip: a wafer at an address needs grpcio. Received: {error}. "
            + pip_install("'cerebras_tf[address]'")
            + " installs it."
        ) from error
    folder = job.folder()
    if job.wafers() == 1 or folder is None:
        return wafer_at(address, credentials_path, log)
    # If the first process had to wait for one job, and another for a second job, none would go on.
    own = address_of_rank(address, "cs_ip")
    first = Path(folder, f"has_wafer_{address.rpartition(':')[2]}")
    while not (job.is_first() or first.exists()):
        time.sleep(_POLL_S)
    wafer = wafer_at(own, credentials_path, log)
    first.touch()
    return wafer


def address_of_rank(address: str, key: str) -> str:
    """The address of this process's wafer: each of a job has a port, the given one and the next.

    Args:
        address: of the first wafer, HOST:PORT.
        key: option that sets it.

    Raises:
        ConfigError: a wafer of the job would have no port.
    """
    wafers = job.wafers()
    if wafers == 1:
        return address
    host, _, port = address.rpartition(":")
    if not 1 <= int(port) <= _MAX_PORT + 1 - wafers:
        raise ConfigError(
            f"{key}: each of {wafers} wafers must have a port, the given one and the next ones. "
            f"Received: {address}. Use a port from 1 to {_MAX_PORT + 1 - wafers}."
        )
    return f"{host}:{int(port) + job.rank()}"
