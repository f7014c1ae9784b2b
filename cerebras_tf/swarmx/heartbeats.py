"""Heartbeats and other files by which a job's processes report to the launcher.

Every second, a process writes how long it has waited for others. If some wait for too long, the
launcher reports the processes that do not wait.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Optional

from cerebras_tf.swarmx.job import LOCK_FILE, make_secret
from cerebras_tf.user_files import read_json
from cerebras_tf.whole_file import write_whole

HEARTBEAT_S = 1.0
# Exit status of a mistake of the user that the process has reported. Another attempt would repeat
# it.
MISTAKE_STATUS = 2
ENDED_WAIT_S = 3.0  # that others have waited for a process at its end, which will not come any more
STOPPED_S = 3.0  # a command that is stopped for longer has failed
GRACE_S = 3.0  # between a request to end and the end; also for MPI's launcher to notice a failure
_NAP_S = 0.02


def heartbeat_file(folder: str, rank: int) -> Path:
    """The heartbeat of a process."""
    return Path(folder, f".alive_{rank}")


def failure_file(folder: str, rank: int) -> Path:
    """The report of how a process ended."""
    return Path(folder, f".failed_{rank}")


def mistake_file(folder: str, rank: int) -> Path:
    """Exists if a process has ended because of a mistake of the user."""
    return Path(folder, f".mistake_{rank}")


def signal_file(folder: str) -> Path:
    """Numbers of signals that all processes are sent."""
    return Path(folder, ".signal")


def over_file(folder: str) -> Path:
    """Exists once the launcher has given up on the job."""
    return Path(folder, ".over")


def send_signal(folder: str, numbers: Iterable[int]) -> None:
    """Sends these signals to every process, except signals sent before."""
    write_whole(signal_file(folder), "".join(f"{number} " for number in numbers), sync=False)


def sent_signals(folder: str) -> list[int]:
    """Signals sent to every process, in order."""
    path = signal_file(folder)
    return list(map(int, path.read_text(encoding="utf-8").split())) if path.exists() else []


def checkpoint_file(folder: str) -> Path:
    """The prefix of the last checkpoint that rank 0 has written."""
    return Path(folder, ".checkpoint")


def record_checkpoint(folder: Optional[str], prefix: str) -> None:
    """Records that a checkpoint was written; does nothing if `folder` is None."""
    if folder is not None:
        write_whole(checkpoint_file(folder), prefix, sync=False)


class HeartbeatReader:
    """Reads the heartbeats of a job, and times them by when it has first read each.

    So no other clock counts, neither that of a file server nor a wall clock that is set. While this
    process itself was paused, its clock has advanced by one heartbeat.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._now, self._last = 0.0, time.monotonic()
        self._seen: dict[Path, tuple[str, float]] = {}

    def now(self) -> float:
        """Seconds on the clock of this reader, which must be called at least every heartbeat."""
        now = time.monotonic()
        self._now, self._last = self._now + min(now - self._last, HEARTBEAT_S), now
        return self._now

    def read(self, rank: int) -> Optional[tuple[float, float]]:
        """Seconds that a process had waited for others, and since when its heartbeat is known.

        None without a heartbeat.
        """
        try:
            seen = self._first_seen(heartbeat_file(self._folder, rank))
            return float(seen[0].split()[0]), seen[1]
        except (OSError, ValueError, IndexError):
            return None

    def ended_since(self, rank: int) -> float:
        """Since when the report of a process that has ended is known."""
        return self._first_seen(failure_file(self._folder, rank))[1]

    def has_waited_since(self, rank: int, since: float) -> bool:
        """Whether a process has waited for ENDED_WAIT_S since another one ended."""
        found = self.read(rank)  # an older heartbeat means nothing
        return found is not None and found[0] >= ENDED_WAIT_S and found[1] >= since + ENDED_WAIT_S

    def _first_seen(self, path: Path) -> tuple[str, float]:
        text = path.read_text(encoding="utf-8")
        if path not in self._seen or self._seen[path][0] != text:
            self._seen[path] = text, self.now()
        return self._seen[path]


def wait_for_ranks(folder: str, ranks: int) -> None:
    """Returns when this number of processes has a heartbeat."""
    wanted = {heartbeat_file(folder, rank).name for rank in range(ranks)}
    while not wanted <= set(os.listdir(folder)):  # a listing is current, also on NFS
        time.sleep(_NAP_S)


_REPORT = {"rank": int, "status": int, "reason": (str, type(None)), "time": float}


def reports_of(folder: str, ranks: int) -> list[dict[str, Any]]:
    """The reports of the processes that have ended."""
    reports = []
    for rank in range(ranks):
        with contextlib.suppress(OSError, ValueError):
            reports.append(read_json(failure_file(folder, rank), _REPORT))
    return reports


def has_failed(folder: str, ranks: int) -> bool:
    """Whether a process has reported a failure."""
    return any(report["reason"] for report in reports_of(folder, ranks))


def state_of(process: int) -> str:
    """The state of a process, a letter of proc(5); "" if there is no such process."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[0]


class Heartbeat:
    """Writes the heartbeat of this process from a thread."""

    def __init__(self, folder: Optional[str], rank: int) -> None:
        self._waiting_since = 0.0
        if folder is not None:
            path = heartbeat_file(folder, rank)
            threading.Thread(target=self._write, args=(path,), daemon=True).start()

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Within: this process waits for others."""
        self._waiting_since = time.monotonic()
        try:
            yield
        finally:
            self._waiting_since = 0.0

    def _write(self, path: Path) -> None:
        for beat in itertools.count():
            since = self._waiting_since
            waited = time.monotonic() - since if since else 0.0
            text = f"{waited:12.1f} {beat:12}"
            try:
                write_whole(path, text, sync=False)
            except OSError:  # the disk is full; overwriting takes no more space
                with contextlib.suppress(OSError), open(path, "r+", encoding="utf-8") as file:
                    file.write(text)
            time.sleep(HEARTBEAT_S)


_PREFIX = ".job_"


@contextlib.contextmanager
def job_folder(logs: Path) -> Iterator[Path]:
    """A folder for the processes of one job."""
    logs.mkdir(parents=True, exist_ok=True)
    _sweep(logs)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=logs))
    # Another job must see the file only when it is locked. NFS shares locks only of readable files.
    with open(folder / f"{LOCK_FILE}.new", "w+b") as held:
        _lock(held.fileno(), fcntl.LOCK_SH)
        (folder / f"{LOCK_FILE}.new").rename(folder / LOCK_FILE)
        try:
            make_secret(folder)
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def hold(folder: str) -> None:
    """Keeps the folder until this process ends, even if its launcher ends before."""
    with contextlib.suppress(OSError):
        _lock(os.open(Path(folder, LOCK_FILE), os.O_RDWR), fcntl.LOCK_SH)


def _sweep(logs: Path) -> None:
    """Removes folders of jobs without processes, as after `kill -9`."""
    for folder in logs.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError), open(folder / LOCK_FILE, "r+b") as held:
            if _lock(held.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB):
                shutil.rmtree(folder, ignore_errors=True)


def _lock(file: int, how: int) -> bool:
    """Locks a file; False if another process holds the lock, or the file system has no locks."""
    try:
        fcntl.flock(file, how)
    except OSError:
        return False
    return True
