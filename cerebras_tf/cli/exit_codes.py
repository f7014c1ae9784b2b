"""Maps the end of a program to an exit code and, for mistakes of the user, prints a paragraph.

This file parses no arguments but `--debug`.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import textwrap
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Optional, Union

from cerebras_tf.errors import CerebrasError, SystemUnreachableError
from cerebras_tf.installing import pip_install
from cerebras_tf.user_files import printable

SUCCESS = 0
FAILURE = 1
USER_ERROR = 2
INTERNAL_ERROR = 70
INTERRUPTED = 130
NOBODY_READS = 128 + signal.SIGPIPE

Main = Callable[[list[str]], Optional[int]]

_last_line: Optional[str] = None


def format_error(error: Union[BaseException, str], program: str, width: int) -> str:
    """Returns `PROGRAM: MESSAGE` wrapped to `width` columns; line breaks of the message are kept.

    Words longer than a line, such as paths, are never cut. Control characters are escaped.
    """
    lines = printable(f"{program}: {error}").splitlines()
    return "\n".join(
        textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False) for line in lines
    )


@contextmanager
def signals_raise() -> Iterator[set[int]]:
    """Lets SIGTERM and SIGHUP end the program by SystemExit, so that files are closed on the way.

    Ctrl-C raises KeyboardInterrupt, also where SIGINT was blocked. Outside the main thread, where
    no handler can be set, nothing changes; nor for SIGHUP that is ignored, as `nohup` asks for.

    Returns:
      A context manager that gives the set of signals received so far. A signal that arrives while
      an extension module loads may cause another exception.
    """
    received: set[int] = set()
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def end(number: int, _: Any) -> None:
        received.add(number)
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)

    numbers = [signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
        numbers.append(signal.SIGINT)
    previous = {number: signal.signal(number, end) for number in numbers}
    # The launchers in scripts/ block SIGINT while Python starts, and again while it ends.
    mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        yield received
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def set_stop_message(line: Optional[str]) -> None:
    """Sets what `run_main` prints if a signal ends the program; None for nothing."""
    global _last_line
    _last_line = line


def _print_stop_message(received: set[int]) -> None:
    if received and _last_line is not None:
        print(f"{signal.Signals(min(received)).name}: {_last_line}", file=sys.stderr)


def _flush(program: str) -> int:
    """Flushes stdout before Python does; returns 0, or the exit code of a failure."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
        return SUCCESS
    except BrokenPipeError:
        _drop_output()
        return NOBODY_READS
    except OSError as error:
        _drop_output()
        text = f"standard output: must be writable. Received: {error.strerror}. Free disk space."
        print(format_error(text, program, shutil.get_terminal_size().columns), file=sys.stderr)
        return USER_ERROR


def _drop_output() -> None:
    """Redirects stdout to nothing, so that Python's own flush at exit does not fail too."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def run_main(
    main: Main, argv: Optional[Sequence[str]] = None, program: Optional[str] = None
) -> int:
    """Runs a program and returns its exit code.

    | how `main` ends | stderr | exit code |
    |---|---|---|
    | returns a number or None | - | the number, or 0 |
    | CerebrasError | the message as a paragraph; the traceback with `--debug` | 2 |
    | SystemUnreachableError, which another attempt may not have | the same | 1 |
    | TensorFlow is not installed | a paragraph | 2 |
    | Ctrl-C | what `set_stop_message` was given | 130 |
    | SIGTERM, SIGHUP | the same | 143, 129 |
    | SystemExit | what it carries, if that is text | its code |
    | OSError of a path | a paragraph; the traceback with `--debug` | 2 |
    | nobody reads its output any more, as in `... | head` | - | 141 |
    | what is left of its output cannot be written, as on a full disk | a paragraph | 2 |
    | another exception | a paragraph with the place of the saved traceback | 70 |
    | the same, after Ctrl-C | what `set_stop_message` was given | 130 |
    | the same, after another signal | that, else the same | 143, 129 |

    Args:
      main: the program; takes the arguments without the program's name.
      argv: the arguments; None takes those of this process.
      program: the name put before messages; None takes that of this process.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    program = program or os.path.basename(sys.argv[0]) or "cerebras-tf"
    code = _run(main, arguments, program)
    left = _flush(program)  # also after an error: Python would fail at it when it ends
    return code or left


def _run(main: Main, arguments: list[str], program: str) -> int:
    """Runs a program as `run_main` does, without flushing its output."""
    received: set[int] = set()
    set_stop_message(None)
    try:
        with signals_raise() as received:
            return main(arguments) or SUCCESS
    except CerebrasError as error:
        if "--debug" in arguments:
            traceback.print_exc()
        else:
            width = shutil.get_terminal_size().columns
            print(format_error(error, program, width), file=sys.stderr)
        return FAILURE if isinstance(error, SystemUnreachableError) else USER_ERROR
    except KeyboardInterrupt:
        if signal.SIGINT in received and sys.stderr.isatty():
            print(file=sys.stderr)  # the terminal has just shown ^C, or text without a line end
        _print_stop_message(received)
        return INTERRUPTED
    except SystemExit as stop:
        _print_stop_message(received)
        if stop.code is None or isinstance(stop.code, int):
            return stop.code or SUCCESS
        print(stop.code, file=sys.stderr)
        return FAILURE
    except BrokenPipeError:
        _drop_output()
        return NOBODY_READS
    except Exception as error:
        if isinstance(error, OSError) and error.errno and error.filename and not received:
            return _report_system_error(error, program, "--debug" in arguments)
        if isinstance(error, ModuleNotFoundError) and error.name == "tensorflow":
            text = "tensorflow: must be installed for this. Received: an installation without it. "
            text += pip_install("'cerebras_tf[tensorflow]'") + " installs it."
            print(format_error(text, program, shutil.get_terminal_size().columns), file=sys.stderr)
            return USER_ERROR
        # After a signal this may come from what was interrupted; else report what was not closed.
        if not received or (_last_line is None and signal.SIGINT not in received):
            _report_internal_error(error, program, "--debug" in arguments)
        _print_stop_message(received)
        return 128 + min(received) if received else INTERNAL_ERROR


def _report_system_error(error: OSError, program: str, debug: bool) -> int:
    """Prints what the system refused for a path, such as a name that is too long."""
    if debug:
        traceback.print_exc()
    text = (
        f"{str(error.filename)[:300]}: must be a path that can be used. Received: "
        f"{error.strerror}. Use another path, or correct its permissions."
    )
    print(format_error(text, program, shutil.get_terminal_size().columns), file=sys.stderr)
    return USER_ERROR


def _report_internal_error(error: Exception, program: str, debug: bool) -> None:
    """Prints a paragraph with the place of the saved traceback; with `debug` the traceback."""
    text = "".join(traceback.format_exception(error))
    try:
        handle, path = tempfile.mkstemp(".txt", "cerebras-tf-traceback-")
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except OSError:  # such as a full disk
        debug = True
    if debug:
        print(printable(text), end="", file=sys.stderr)
        return
    at = traceback.extract_tb(error.__traceback__)[-1]
    message = (
        f"internal error: the command could not be finished. Received: {type(error).__name__}: "
        f"{str(error)[:300]} (at {at.filename}:{at.lineno}). The traceback is in {path}. Report "
        "it with the command; --debug shows it here."
    )
    print(format_error(message, program, shutil.get_terminal_size().columns), file=sys.stderr)
