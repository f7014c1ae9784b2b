"""Importing this keeps the console quiet where Ctrl-C comes while other modules still load.

The launchers hold Ctrl-C back while Python itself starts; from here on it arrives. Extension
modules that load may make another exception of it, so it is noted that it came. After `loaded`,
`cerebras_tf.cli.exit_codes.run_main` decides what is shown.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

INTERRUPTED = 130
_show = sys.excepthook
_received: list[int] = []


def _interrupt(number, frame):
    _received.append(number)
    raise KeyboardInterrupt


def _show_all_but_interrupts(kind, error, traceback):
    if issubclass(kind, KeyboardInterrupt):
        return
    if _received:
        os._exit(INTERRUPTED)
    _show(kind, error, traceback)


def loaded():
    """Gives Ctrl-C back to Python's own handler."""
    if signal.getsignal(signal.SIGINT) is _interrupt:
        signal.signal(signal.SIGINT, signal.default_int_handler)


sys.excepthook = _show_all_but_interrupts
in_main = threading.current_thread() is threading.main_thread()
if in_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _interrupt)
if hasattr(signal, "pthread_sigmask"):
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
