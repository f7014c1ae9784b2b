"""Importing this keeps the console quiet where Ctrl-C comes while other modules still load.

Later, `cerebras_tf.cli.exit_codes.run_main` decides what is shown.
"""

from __future__ import annotations

import sys

_show = sys.excepthook


def _show_all_but_interrupts(kind, error, traceback):
    if not issubclass(kind, KeyboardInterrupt):
        _show(kind, error, traceback)


sys.excepthook = _show_all_but_interrupts
