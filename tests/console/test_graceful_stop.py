"""Signals to a training with forked workers; tests/estimator/test_hooks.py has the others."""

from __future__ import annotations

import os
import signal
import time

from cerebras_tf.console.graceful_stop import GracefulStop


def test_forked_workers_ignore_ctrl_c_and_do_not_delay_the_end():
    codes = []
    stop = GracefulStop(codes.append)
    stop.begin()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.write(writing, b"1")
        time.sleep(60)
        os._exit(0)
    try:
        os.read(reading, 1)
        for _ in range(20):
            os.kill(child, signal.SIGINT)
            time.sleep(0.01)
        assert not stop.is_due and os.waitpid(child, os.WNOHANG) == (0, 0)
        started = time.monotonic()
        stop.restore()
        assert time.monotonic() - started < 20
    finally:
        stop.restore()
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert codes == []
