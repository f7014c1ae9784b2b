"""Servers of a wafer in this process, and their credentials."""

from __future__ import annotations

import re
import signal
import subprocess
import sys

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


_PROCESS = """
import sys
for name in ("tensorflow", "torch"):
    sys.modules[name] = None  # importing it raises ImportError
from modelzoo.commands.main import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def elsewhere(files):
    """Address of a server in a process that has neither TensorFlow nor PyTorch."""
    pytest.importorskip("grpc")
    arguments = ["serve", "--listen", "127.0.0.1:0", "--credentials_path", str(files[1])]
    command = [sys.executable, "-c", _PROCESS, *arguments, "--max_memory_gb", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline()
            yield re.match(r"wafer at (127\.0\.0\.1:\d+): \d+ thread", line)[1]
        finally:
            process.terminate()
        assert process.wait(20) == 128 + signal.SIGTERM
