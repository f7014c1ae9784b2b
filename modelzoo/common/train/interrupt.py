"""Importing this keeps the console quiet where Ctrl-C comes while other modules still load.

The launchers hold Ctrl-C back while Python itself starts; from here on it arrives, and ends the
process at once, before a module that loads can make another exception of it. After `loaded` it is
Python's own again, and `cerebras_tf.cli.exit_codes.run_main` decides what is shown. What comes
before or behind that, as while Python ends, is not shown either.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys

_show, _show_unraisable = sys.excepthook, sys.unraisablehook


def _show_all_but_interrupts(kind, error, traceback):
    if not issubclass(kind, KeyboardInterrupt):
        _show(kind, error, traceback)


def _show_all_unraisable_but_interrupts(unraisable):
    if not issubclass(unraisable.exc_type, KeyboardInterrupt):
        _show_unraisable(unraisable)


def _exchange(handler, other):
    """Sets one handler of Ctrl-C in place of another, where that is set."""
    if signal.getsignal(signal.SIGINT) is handler:
        with contextlib.suppress(ValueError):  # only the main thread may
            signal.signal(signal.SIGINT, other)
            return True
    return False


def loaded():
    """Gives Ctrl-C back to Python's own handler, where importing this took it."""
    if _taken:
        _exchange(signal.SIG_DFL, signal.default_int_handler)


@contextlib.contextmanager
def ending_at_once(line):
    """Within: SIGINT, SIGTERM and SIGHUP print their name and `line`, and end the process.

    For loading what other people wrote, which may swallow an exception, or make another of it;
    nothing is open yet that would have to be closed. Outside the main thread nothing changes, nor
    for what is ignored.
    """

    def end(number, _):
        line_end = b"\n" if os.isatty(2) else b""  # a terminal has just shown ^C
        with contextlib.suppress(OSError):
            os.write(2, line_end + f"{signal.Signals(number).name}: {line}\n".encode())
        os._exit(128 + number)

    with contextlib.ExitStack() as undo:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            before = signal.getsignal(number)
            with contextlib.suppress(ValueError):  # only the main thread may
                if before not in (signal.SIG_IGN, None):
                    signal.signal(number, end)
                    undo.callback(signal.signal, number, before)
        yield


_taken = _exchange(signal.default_int_handler, signal.SIG_DFL)
sys.excepthook = _show_all_but_interrupts
sys.unraisablehook = _show_all_unraisable_but_interrupts
if hasattr(signal, "pthread_sigmask"):
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
