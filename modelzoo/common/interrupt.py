"""Importing this keeps the console quiet where Ctrl-C comes while other modules still load.

The launchers hold Ctrl-C back while Python itself starts; from here on it arrives. Later,
`cerebras_tf.cli.exit_codes.run_main` decides what is shown.
"""

from __future__ import annotations

import signal
import sys

_show = sys.excepthook


def _show_all_but_interrupts(kind, error, traceback):
    if not issubclass(kind, KeyboardInterrupt):
        _show(kind, error, traceback)


sys.excepthook = _show_all_but_interrupts
if hasattr(signal, "pthread_sigmask"):
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
