"""Servers of a wafer in this process, and their credentials."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    """Paths of credentials: (of clients, of the server)."""
    pytest.importorskip("cryptography")
    from cerebras_tf.address.credentials import new_credentials

    folder = tmp_path_factory.mktemp("credentials")
    new_credentials(folder / "wafer.pem", folder / "wafer-server.pem")
    return folder / "wafer.pem", folder / "wafer-server.pem"


@pytest.fixture
def serve(files):
    """Starts servers, and stops them at the end of the test."""
    pytest.importorskip("grpc")
    from cerebras_tf.address.credentials import load_credentials
    from cerebras_tf.address.server import WaferServer

    started = []

    def start(address="127.0.0.1:0", **given):
        server = WaferServer(address, load_credentials(files[1], serves=True), **given)
        server.start()
        started.append(server)
        return server

    yield start
    for server in started:
        server.stop()
