"""Ctrl-C while modules load: no traceback, and the exit code of an interrupt."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

# NumPy, interrupted while it loads, would raise an ImportError in place of a KeyboardInterrupt.
LOADING = """
import modelzoo.common.train.interrupt, signal
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    raise ImportError("datetime") from None
"""


def test_what_a_loading_module_makes_of_an_interrupt_is_not_shown():
    ended = subprocess.run([sys.executable, "-c", LOADING], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (-signal.SIGINT, "")  # 130 in a shell


def test_other_errors_while_loading_are_shown():
    program = LOADING.replace("signal.raise_signal(signal.SIGINT)", "raise KeyboardInterrupt")
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.returncode == 1 and "ImportError: datetime" in ended.stderr


# The console entry as pip writes it, interrupted as the n-th module loads from interrupt.py on.
ENTRY = """
import signal, sys
left = int(sys.argv.pop())
def count(event, arguments):
    global left
    if event == "import" and hasattr(sys.modules.get("modelzoo.common.train.interrupt"), "loaded"):
        left -= 1
        if left == 0:
            signal.raise_signal(signal.SIGINT)
sys.addaudithook(count)
from modelzoo.commands.main import main
sys.exit(main())
"""


@pytest.mark.parametrize("instant", [1, 5, 20, 60, 120, 200])
def test_the_console_entry_ends_without_a_word_at_any_instant(instant):
    """The later of them are in the command's own modules, NumPy among them."""
    plan = ("scaling", "plan", "--budget", "1e20", str(instant))
    ended = subprocess.run([sys.executable, "-c", ENTRY, *plan], capture_output=True, text=True)
    assert (ended.stdout, ended.stderr) == ("", "")
    assert ended.returncode in (-signal.SIGINT, 130)  # 130 in a shell, both


def test_an_interrupt_while_python_ends_is_not_shown():
    code = "import atexit, signal, modelzoo.commands.main\n"
    code += "atexit.register(signal.raise_signal, signal.SIGINT)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_afterwards_the_interrupt_is_pythons_own():
    import modelzoo.commands.main
    import modelzoo.common.train.run  # noqa: F401

    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
