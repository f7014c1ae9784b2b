"""`cerebras-tf tensorboard` serves a page and prints one line."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from modelzoo.commands.main import main
from tests.messages import names

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.tf
def test_the_page_is_served_until_ctrl_c_and_nothing_else_is_printed(tmp_path):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    command = ["-m", "modelzoo.commands.main", "tensorboard", str(tmp_path), "--port", str(port)]
    process = subprocess.Popen(
        [sys.executable, *command],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        line = process.stdout.readline()
        assert f"http://localhost:{port}/" in line
        with urllib.request.urlopen(f"http://localhost:{port}/") as page:
            assert b"tb-" in page.read()
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=60)
        assert (rest, errors) == ("", "SIGINT: TensorBoard has ended\n")
    finally:
        process.kill()


def test_a_folder_that_is_not_there_is_refused(tmp_path, capsys):
    (tmp_path / "model_dir").mkdir()
    assert main(["tensorboard", str(tmp_path / "model_dri")]) == 2
    assert names(capsys.readouterr().err, "model_dri", "model_dir?")
