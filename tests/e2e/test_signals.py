"""Checks whole processes: how they end on signals, go on afterwards, and look on a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

pytest.importorskip("tensorflow")

from modelzoo.common.train import run
from tests.messages import names
from tests.reading import assert_same

pytestmark = pytest.mark.tf
ROOT = Path(__file__).parents[2]


@pytest.fixture
def start(command_line):
    """Returns a function that starts training into the folder `out`."""
    processes = []

    def start(*flags, stderr=subprocess.PIPE):
        command = [sys.executable, "-m", "modelzoo.common.train.run", "-m", "train", "-p"]
        command += [str(command_line.params), "-o", str(command_line.folder / "out"), *flags]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(command, env=environment, stderr=stderr, text=True)
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def wait_for(process, text):
    """Reads the process's lines up to the first that holds a text; returns them."""
    lines = []
    for line in process.stderr:
        lines.append(line)
        if text in line:
            return lines
    raise AssertionError("ended too soon:\n" + "".join(lines))


@pytest.mark.parametrize(
    "number,exit_code,when",
    [
        (signal.SIGINT, 130, "Saving checkpoints for 0"),  # after the compilation
        (signal.SIGTERM, 143, "training from step 0"),  # the first step
    ],
)
def test_a_signal_ends_the_step_and_the_next_run_resumes(
    start, command_line, number, exit_code, when
):
    process = start("--max_steps", "1000000")
    wait_for(process, when)
    process.send_signal(number)
    _, rest = process.communicate(timeout=120)
    assert process.returncode == exit_code
    assert f"{number.name}: stopping after this step and writing a checkpoint" in rest
    assert "Traceback" not in rest
    assert "\r" not in rest  # no progress bar in a pipe
    step = command_line.steps()[-1]
    assert step >= 1
    assert rest.splitlines()[-1].startswith(f"{number.name}: stopped at step {step}; the same")
    result = command_line("train", "--max_steps", str(step + 1))
    assert result.exit_code == 0
    assert any(line.startswith(f"training from step {step} to") for line in result.lines)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_while_tensorflow_loads_leaves_nothing(start, command_line, number):
    process = start()
    wait_for(process, "loading TensorFlow")
    process.send_signal(number)
    _, rest = process.communicate(timeout=120)
    assert process.returncode == 128 + number
    (line,) = rest.splitlines()
    assert names(line, number.name, "TensorFlow was loading")
    assert not (command_line.folder / "out").exists()


def test_a_signal_before_the_first_step_is_named(command_line, monkeypatch):
    """While the data of a run are looked for, after TensorFlow was loaded."""
    monkeypatch.setattr(run, "start_mode", lambda *given: signal.raise_signal(signal.SIGTERM))
    result = command_line("train")
    assert result.exit_code == 143
    assert names(result.error, "SIGTERM", "before its first step")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_tensorflow_loads_is_named(command_line, monkeypatch, number):
    monkeypatch.setattr(run, "load_params", lambda *given: signal.raise_signal(number))
    result = command_line("train")
    assert result.exit_code == 128 + number
    assert names(result.error, number.name, command_line.params)
    assert not (command_line.folder / "out").exists()


# Runs the runner's module as the launchers do, with SIGINT blocked, and sends Ctrl-C as it imports.
EARLY = """
import builtins, runpy, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
load = builtins.__import__
def interrupted(name, *rest, **named):
    if name == "cerebras_tf.errors":
        signal.raise_signal(signal.SIGINT)
    return load(name, *rest, **named)
builtins.__import__ = interrupted
runpy.run_module("modelzoo.common.train.run", run_name="__main__")
"""


def test_ctrl_c_while_modules_load_shows_nothing():
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", EARLY], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 128 + signal.SIGINT
    assert done.stderr == ""


def test_a_second_run_is_refused_and_a_killed_one_resumes_exactly(start, command_line):
    process = start("--max_steps", "1000000")
    wait_for(process, "global_step = 10, ")
    second = command_line("train")
    assert second.exit_code == 2
    assert f"process {process.pid} writes in" in second.error
    process.kill()
    process.communicate(timeout=120)
    step = command_line.steps()[-1]
    assert step >= 10
    for out in ("out", "whole"):
        assert command_line("train", "--max_steps", str(step + 3), out=out).exit_code == 0
    assert_same(command_line.variables(), command_line.variables("whole"))
    leftovers = [path.name for path in (command_line.folder / "out").glob("*writing*")]
    assert not leftovers


def test_a_terminal_shows_a_bar_with_the_time_left_and_no_noise(start):
    reader, writer = pty.openpty()
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    process = start("--max_steps", "6", stderr=writer)
    os.close(writer)
    shown = b""
    try:
        while part := os.read(reader, 65536):
            shown += part
    except OSError:  # how Linux ends the reading of a terminal that nobody writes to any more
        pass
    os.close(reader)
    assert process.wait(timeout=120) == 0
    text = shown.decode()
    bar = r"\d+%\|[^|]*\| (\d)/6 \[\d\d:\d\d<(\d\d:\d\d|\?), [^\]]*\]"
    assert re.search(bar, text).group(1) == "0"
    assert [found.group(1) for found in re.finditer(bar, text)][-1] == "6"
    lines = [line.strip() for line in re.split(r"[\r\n]+", re.sub(bar, "", text))]
    lines = [line for line in lines if line]
    assert len(lines) > 8
    stamp = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d "
    assert re.match(rf"{stamp}train: gpt3 of .*params_small.yaml, in .*/out; loading", lines[0])
    assert all(re.match(f"{stamp}INFO:tensorflow:", line) for line in lines[1:]), lines
    assert sum("global_step = 5, loss = " in line for line in lines) == 1
