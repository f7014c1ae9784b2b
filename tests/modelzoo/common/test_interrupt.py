"""Ctrl-C while modules load: no traceback, and the exit code of an interrupt."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

# NumPy, interrupted while it loads, raises an ImportError in place of the KeyboardInterrupt.
LOADING = """
import modelzoo.common.interrupt, signal
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    raise ImportError("datetime") from None
"""


def test_what_a_loading_module_makes_of_an_interrupt_is_not_shown():
    ended = subprocess.run([sys.executable, "-c", LOADING], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (130, "")


def test_other_errors_while_loading_are_shown():
    program = LOADING.replace("signal.raise_signal(signal.SIGINT)", "raise KeyboardInterrupt")
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.returncode == 1 and "ImportError: datetime" in ended.stderr


def test_afterwards_the_interrupt_is_pythons_own():
    import modelzoo.common.run  # noqa: F401

    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
