"""Attributes of TensorFlow are replaced while a call runs, and only then."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

pytest.importorskip("tensorflow")

from cerebras_tf.capture.replacement import Replacement

pytestmark = pytest.mark.tf


def test_calls_that_overlap_restore_the_attribute_when_the_last_one_ends():
    owner = SimpleNamespace(word="own")
    replacement = Replacement(owner, "word", "replaced")
    first, second = replacement.active(), replacement.active()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert owner.word == "replaced"
    second.__exit__(None, None, None)
    assert owner.word == "own"


def test_importing_the_package_changes_nothing_of_the_process():
    code = (
        "from tensorflow.python.training import session_manager\n"
        "import signal, sys, tensorflow as tf\n"
        "from tensorflow.python.util import deprecation\n"
        "from tensorflow.python.summary.writer.writer_cache import FileWriterCache\n"
        "def state():\n"
        "    return (vars(deprecation)['_PRINT_DEPRECATION_WARNINGS'], sys.excepthook,\n"
        "        vars(FileWriterCache)['get'], signal.pthread_sigmask(signal.SIG_BLOCK, []),\n"
        "        session_manager.session,"
        "        tf.compat.v1.Session.run, signal.getsignal(signal.SIGINT))\n"
        "before = state()\n"
        "import cerebras_tf.estimator.estimator\n"
        "assert state() == before\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
