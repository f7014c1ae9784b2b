"""Checks how the end of a program becomes an exit code and a message."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from cerebras_tf.cli.exit_codes import format_error, run_main, set_stop_message
from cerebras_tf.errors import CheckpointError, ConfigError, SystemUnreachableError
from tests.messages import names


def ends_with(exception):
    def main(argv):
        raise exception

    return main


@pytest.mark.parametrize("result,code", [(None, 0), (0, 0), (3, 3)])
def test_a_returned_number_is_the_exit_code(result, code):
    assert run_main(lambda argv: result, []) == code


def test_arguments_reach_the_program_without_its_name(monkeypatch):
    received = []
    monkeypatch.setattr("sys.argv", ["/usr/bin/prog", "a", "--b"])
    assert run_main(received.extend) == 0
    assert received == ["a", "--b"]


def test_a_mistake_of_the_user_is_one_paragraph_and_exit_code_2(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    sentence = (
        "params.yaml: unknown key model.num_layers. Did you mean model.num_hidden_layers? "
        "Received: 24."
    )
    assert run_main(ends_with(ConfigError(sentence)), [], "train") == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert " ".join(output.err.split()) == f"train: {sentence}"
    assert max(map(len, output.err.splitlines())) <= 60
    assert "Traceback" not in output.err


def test_a_wafer_that_is_lost_may_be_there_at_the_next_attempt():
    assert run_main(ends_with(SystemUnreachableError("gone")), [], "train") == 1


def test_debug_shows_the_traceback(capsys):
    assert run_main(ends_with(CheckpointError("broken")), ["--debug"]) == 2
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_lines_of_a_message_stay_apart_and_paths_stay_whole():
    path = "/data/" + "long-folder/" * 10 + "file.tfrecord"
    text = format_error(ConfigError(f"two faults:\n- {path}\n- b"), "run", 40)
    assert text.splitlines()[0] == "run: two faults:"
    assert path in text
    assert text.splitlines()[-1] == "- b"


def test_an_unexpected_exception_is_a_paragraph_and_its_traceback_is_saved(
    capsys, tmp_path, monkeypatch
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert run_main(ends_with(KeyError("x\x1b[2J")), []) == 70
    (path,) = tmp_path.iterdir()
    shown = capsys.readouterr().err
    assert names(" ".join(shown.split()), "KeyError: 'x\\x1b[2J'", "test_exit_codes.py:", path)
    assert "Traceback" not in shown and "\x1b" not in shown
    assert names(path.read_text(), "Traceback (most recent call last)", "raise exception")
    assert path.stat().st_mode & 0o777 == 0o600
    assert run_main(ends_with(KeyError("x")), ["--debug"]) == 70
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_ctrl_c_exits_130_silently(capsys):
    assert run_main(ends_with(KeyboardInterrupt()), []) == 130
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("becomes", [None, ImportError("an extension module")])
def test_a_signal_ends_with_the_last_line_that_was_set(capsys, number, becomes):
    inherited = signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def main(argv):
        set_stop_message("stopped before its first step")
        try:
            signal.raise_signal(number)
        except BaseException:
            if becomes is None:
                raise
            raise becomes from None

    try:
        assert run_main(main, []) == 128 + number
        assert capsys.readouterr().err == f"{number.name}: stopped before its first step\n"
        assert run_main(ends_with(KeyboardInterrupt()), []) == 130
        assert capsys.readouterr().err == ""
    finally:
        signal.signal(number, inherited)


def test_output_that_nobody_reads_any_more_ends_the_program_silently():
    code = (
        "import sys; from cerebras_tf.cli.exit_codes import run_main\n"
        "def main(argv):\n    while True: print('x' * 1000)\n"
        "sys.exit(run_main(main, []))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert (process.stderr.read(), process.wait(timeout=60)) == (b"", 141)
    process.stderr.close()


def test_an_error_that_comes_of_ctrl_c_is_silent_too(capsys):
    def main(argv):
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise ImportError("an extension module that was interrupted") from None

    before = signal.getsignal(signal.SIGINT)
    assert run_main(main, []) == 130
    assert capsys.readouterr().err == ""
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("number,code", [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_termination_closes_files_and_puts_the_handler_back(number, code):
    inherited = signal.signal(number, signal.SIG_DFL)  # the tests themselves may run under nohup
    before = signal.getsignal(number)
    closed = []

    def main(argv):
        try:
            os.kill(os.getpid(), number)
            signal.pause()
        finally:
            closed.append(True)

    try:
        assert run_main(main, []) == code
        assert closed == [True]
        assert signal.getsignal(number) is before
    finally:
        signal.signal(number, inherited)


def test_a_hangup_that_nohup_ignores_ends_nothing():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert run_main(lambda argv: os.kill(os.getpid(), signal.SIGHUP), []) == 0
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("code,expected", [(None, 0), (0, 0), (2, 2), (143, 143)])
def test_system_exit_passes_its_code(code, expected):
    assert run_main(ends_with(SystemExit(code)), []) == expected


def test_system_exit_with_text_prints_it_and_exits_1(capsys):
    assert run_main(ends_with(SystemExit("no more")), []) == 1
    assert capsys.readouterr().err == "no more\n"


def test_an_error_behind_a_termination_is_shown_where_nothing_else_is_said(capsys):
    def main(argv):
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            raise OSError("a checkpoint that was not written")

    assert run_main(main, []) == 143
    error = " ".join(capsys.readouterr().err.split())
    assert "a checkpoint that was not written" in error


@pytest.mark.parametrize(
    "ends,code_of_its_own",
    [
        ("return", 0),
        ("raise SystemExit(0)", 0),
        ("raise SystemExit(143)", 143),
        ("raise ConfigError('params.yaml: wrong')", 2),
    ],
)
@pytest.mark.parametrize("place,code,told", [("pipe", 141, ""), ("/dev/full", 2, "No space left")])
def test_output_left_in_the_buffer_ends_the_program_with_one_line_or_none(
    ends, code_of_its_own, place, code, told
):
    text = (
        "import sys; from cerebras_tf.cli.exit_codes import run_main\n"
        "from cerebras_tf.errors import ConfigError\n"
        f"def main(argv):\n    print('x')\n    {ends}\n"
        "sys.exit(run_main(main, [], 'tool'))"
    )
    if place == "pipe":
        reader, writer = os.pipe()
        os.close(reader)
    else:
        writer = os.open(place, os.O_WRONLY)
    command = [sys.executable, "-c", text]
    own = {**os.environ, "PYTHONUNBUFFERED": ""}
    ended = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, env=own)
    os.close(writer)
    assert ended.returncode == (code_of_its_own or code)
    assert "Exception ignored" not in ended.stderr
    lines = [line for line in ended.stderr.splitlines() if "params.yaml: wrong" not in line]
    assert told in ended.stderr and len(lines) <= 2


def test_tensorflow_that_is_not_installed_is_a_paragraph(capsys):
    def main(_):
        raise ModuleNotFoundError("No module named 'tensorflow'", name="tensorflow")

    assert run_main(main, [], "program") == 2
    shown = capsys.readouterr().err
    assert "Traceback" not in shown and "cerebras_tf[tensorflow]" in shown
