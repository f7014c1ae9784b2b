"""Ends training after the current step when the process is asked to end."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, Optional, TypeVar

from cerebras_tf.swarmx import job

_ONE_REQUEST_S = 2.0  # in which signals to a process of a job are the same request

# Those whose handlers are installed.
_begun: weakref.WeakSet[GracefulStop] = weakref.WeakSet()


def _leave_to_parent() -> None:
    """In a forked child, such as a worker of a DataLoader: only the parent is asked to end.

    A terminal sends Ctrl-C to both, and the parent needs its workers until the step ends.
    """
    for stop in list(_begun):
        stop.leave_to_parent()
        _begun.discard(stop)


os.register_at_fork(after_in_child=_leave_to_parent)

Stop = TypeVar("Stop", bound="GracefulStop")


def exit_code_of_signal(signal_number: int) -> int:
    """Returns the shell's exit code for a process ended by a signal: 143 for SIGTERM."""
    return 128 + signal_number


class GracefulStop:
    """Ends training after the current step when SIGINT, SIGTERM or SIGHUP arrives.

    Training then ends as usual and writes the last checkpoint. A second signal ends the process at
    once; in a job it must come some time after the first, because Slurm and the launcher may both
    forward one request. Use it as a context around training. On exit it restores the signal
    handlers, prints where the next run resumes, and raises, so that the process exits with 130, 143
    or 129:

        with GracefulStop(newest=newest_checkpoint) as stop:
            stop.begin()
            while not stop.is_due:
                train_a_step()

    `begin` installs the handlers, so a signal before it has its usual effect. Python runs signal
    handlers only between bytecodes of the main thread, which may be inside a long step; therefore a
    thread watches for signals through `signal.set_wakeup_fd`. Outside the main thread nothing is
    installed. An ignored SIGHUP (`nohup`) stays ignored.

    Args:
      abort: called with the exit code on the second signal; ends the process.
      newest: returns the step and the name of the newest checkpoint, or None; None if checkpoints
        are not reported.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(
        self,
        abort: Callable[[int], Any] = os._exit,
        newest: Optional[Callable[[], Optional[tuple[int, str]]]] = None,
    ) -> None:
        self.signal_number: Optional[int] = None
        self._signalled_at = 0.0
        self._abort = abort
        self._newest = newest
        self._previous_handlers: dict[int, Any] = {}
        self._previous_wakeup_fd = -1
        self._write_end: Optional[socket.socket] = None
        self._watcher: Optional[threading.Thread] = None

    def __enter__(self: Stop) -> Stop:
        return self

    def __exit__(
        self,
        exception_type: Optional[type[BaseException]],
        exception: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        self.restore()
        if exception_type in (None, KeyboardInterrupt, SystemExit):
            self._print_where_to_resume()
        if exception_type is None:
            self.raise_if_signalled()

    def _print_where_to_resume(self) -> None:
        if self.signal_number is None or self._newest is None:
            return
        found = self._newest()
        where = "and no checkpoint was written; the same command starts from the beginning"
        if found is not None:
            where = f"at step {found[0]}; the same command resumes from {found[1]}"
        _print(f"{signal.Signals(self.signal_number).name}: stopped {where}")

    def begin(self) -> None:
        """Installs the handlers, in the main thread only."""
        if self._watcher is not None or threading.current_thread() is not threading.main_thread():
            return
        read_end, self._write_end = socket.socketpair()
        self._write_end.setblocking(False)
        self._previous_wakeup_fd = signal.set_wakeup_fd(
            self._write_end.fileno(), warn_on_full_buffer=False
        )
        for number in self.SIGNALS:
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                continue
            self._previous_handlers[number] = signal.signal(number, lambda *_: None)
        self._watcher = threading.Thread(
            target=self._watch, args=(read_end,), name="signal watcher", daemon=True
        )
        self._watcher.start()
        _begun.add(self)

    def _watch(self, read_end: socket.socket) -> None:
        """Receives one byte per signal, its number, until the other end is closed."""
        with read_end:
            while received := read_end.recv(1):
                if received[0] in self.SIGNALS:
                    self._receive(received[0])

    def _receive(self, signal_number: int) -> None:
        name = signal.Signals(signal_number).name
        if self.signal_number is not None:
            if job.folder() and time.monotonic() - self._signalled_at < _ONE_REQUEST_S:
                return
            _print(f"second {name}: stopping immediately")
            self._abort(exit_code_of_signal(signal_number))
            return
        self.signal_number, self._signalled_at = signal_number, time.monotonic()
        line_end = "\n" if sys.stderr.isatty() else ""  # a terminal has just shown ^C
        _print(
            f"{line_end}{name}: stopping after this step and writing a checkpoint; a second {name} "
            "stops immediately and loses the steps since the last checkpoint"
        )

    @property
    def is_due(self) -> bool:
        """Whether a signal has arrived."""
        return self.signal_number is not None

    def leave_to_parent(self) -> None:
        """Restores handlers in a forked child, and ignores SIGINT there."""
        with contextlib.suppress(ValueError):  # forked by another thread
            signal.set_wakeup_fd(-1)
            for number, handler in self._previous_handlers.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
            signal.signal(signal.SIGINT, signal.SIG_IGN)

    def restore(self) -> None:
        """Restores the previous handlers, if any were replaced."""
        if self._watcher is None or self._write_end is None:
            return
        for number, handler in self._previous_handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        signal.set_wakeup_fd(self._previous_wakeup_fd)
        _begun.discard(self)
        # Forked processes may still have the other descriptor of this socket.
        self._write_end.shutdown(socket.SHUT_RDWR)
        self._write_end.close()
        self._watcher.join()
        self._watcher = None

    def raise_if_signalled(self) -> None:
        """Raises the exception of the signal that has arrived, if any.

        Raises:
          KeyboardInterrupt: SIGINT arrived.
          SystemExit: SIGTERM or SIGHUP arrived; the exit code is the shell's.
        """
        if self.signal_number == signal.SIGINT:
            raise KeyboardInterrupt
        if self.signal_number is not None:
            raise SystemExit(exit_code_of_signal(self.signal_number))


def _print(text: str) -> None:
    """Prints a line on stderr; ignores a closed terminal."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)
