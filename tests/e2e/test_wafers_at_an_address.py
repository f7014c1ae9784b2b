"""A training on two processes, each with a wafer of its own at an address."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("grpc")
pytest.importorskip("cryptography")

from cerebras_tf.address.credentials import new_credentials
from tests.e2e.wafer_runs import LIMIT_S, environment
from tests.reading import variables_of
from tests.swarmx.ranks import ROOT, needs_mpi

pytestmark = [pytest.mark.tf, needs_mpi()]

SIZES = "model.hidden_size=32 model.num_hidden_layers=1 train_input.batch_size=4"


def launched(folder, *command):
    """A command on two wafers."""
    launch = ("cerebras_tf.swarmx.launch", "--wafers", "2", "--logs", folder / "logs", "--")
    line = (*launch, sys.executable, "-m", "modelzoo.commands.main", *command)
    words = [sys.executable, "-m", *map(str, line)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment())


def free_ports():
    """The first of two ports that are free."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as first:
            port = first.getsockname()[1]
            with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port + 1)):
                return port


@pytest.mark.slow
def test_two_processes_train_at_two_servers_as_here(tmp_path):
    files = tmp_path / "wafer.pem", tmp_path / "wafer-server.pem"
    new_credentials(*files)
    address = f"127.0.0.1:{free_ports()}"
    given = ("--listen", address, "--credentials_path", files[1])
    params = ROOT / "configs" / "params_gpt3_tiny.yaml"
    options = [word for size in SIZES.split() for word in ("--set", size)]
    found = []
    with launched(tmp_path, "serve", *given) as servers:
        try:
            assert servers.stdout.readline().startswith(f"wafer at {address}: ")
            for where in ((), ("--cs_ip", address, "--credentials_path", files[0])):
                folder = tmp_path / str(len(found))
                command = ("train", "-p", params, "-o", folder, "--max_steps", 4, *options)
                with launched(folder, *command, *where) as clients:
                    assert clients.wait(LIMIT_S) == 0
                found.append(variables_of(folder / "model.ckpt-4"))
        finally:
            servers.terminate()
    here, there = found
    assert here.keys() == there.keys()
    for name, value in here.items():
        np.testing.assert_array_equal(there[name], value, err_msg=name)
