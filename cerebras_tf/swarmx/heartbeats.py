"""Signs of life: files by which the launcher sees which process computes, waits, or is gone.

Every second a process writes since when its computing has waited for others; the launcher that sees
some wait for long names those that do not.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Optional

EVERY_S = 1.0
# Exit status of a mistake of the user, which another attempt repeats; the process has told it.
MISTAKE_STATUS = 2
IN_VAIN_S = 3.0  # that others have waited for a process at its end, which will not come any more
_NAP_S = 0.02


def sign_file(folder: str, rank: int) -> Path:
    """Where a process writes its signs."""
    return Path(folder, f".alive_{rank}")


def failure_file(folder: str, rank: int) -> Path:
    """Where is said how a process failed."""
    return Path(folder, f".failed_{rank}")


def mistake_file(folder: str, rank: int) -> Path:
    """What is there where a process has met a mistake of the user, which does not go away."""
    return Path(folder, f".mistake_{rank}")


def keeper_file(folder: str, rank: int) -> Path:
    """Where is said which process keeps a rank."""
    return Path(folder, f".keeper_{rank}")


def signal_file(folder: str) -> Path:
    """Where numbers of signals are that all processes shall get."""
    return Path(folder, ".signal")


def over_file(folder: str) -> Path:
    """What is there once the launcher has given up on the job."""
    return Path(folder, ".over")


def tell_signal(folder: str, numbers: Iterable[int]) -> None:
    """Has every process get these signals, as far as it has not had them."""
    write_whole(signal_file(folder), "".join(f"{number} " for number in numbers))


def signals_told(folder: str) -> list[int]:
    """Signals that every process shall get, in order."""
    path = signal_file(folder)
    return list(map(int, path.read_text(encoding="utf-8").split())) if path.exists() else []


def checkpoint_file(folder: str) -> Path:
    """Where the first process says which checkpoint it has written last."""
    return Path(folder, ".checkpoint")


def tell_checkpoint(folder: Optional[str], prefix: str) -> None:
    """Says that a checkpoint was written; None is no job's folder."""
    if folder is not None:
        write_whole(checkpoint_file(folder), prefix)


def waited_s(folder: str, rank: int) -> Optional[float]:
    """How long a process has waited for others, as it said last; None where it gave no sign."""
    try:
        return float(sign_file(folder, rank).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def time_of_files(folder: str) -> float:
    """The time that a file gets which is made now; the folder's clock may be another machine's."""
    with contextlib.suppress(OSError), tempfile.TemporaryFile(dir=folder) as file:
        return os.fstat(file.fileno()).st_mtime
    return time.time()


def waits_in_vain(folder: str, rank: int, since: float) -> bool:
    """Whether a process says that it has waited for a while after another one's end.

    Args:
        folder: of the job.
        rank: of the process.
        since: when the other one has ended, as the times of files in the folder have it.
    """
    try:  # what it said before, or last of all, may hold no more
        is_said = sign_file(folder, rank).stat().st_mtime >= since + IN_VAIN_S
    except OSError:
        return False
    return is_said and (waited_s(folder, rank) or 0.0) >= IN_VAIN_S


def meet(folder: str, ranks: int) -> None:
    """Returns when so many processes have given a sign."""
    wanted = {sign_file(folder, rank).name for rank in range(ranks)}
    while not wanted <= set(os.listdir(folder)):  # a listing is never an old one, also over NFS
        time.sleep(_NAP_S)


def write_keeper(folder: str, rank: int) -> None:
    """Says that this process keeps a rank."""
    write_whole(keeper_file(folder, rank), f"{os.getpid()} {socket.gethostname()}")


def is_lost(folder: str, rank: int) -> bool:
    """Whether the keeper of a rank on this machine is gone, and has not said how its rank ended."""
    try:
        process, host = keeper_file(folder, rank).read_text(encoding="utf-8").split()
    except (OSError, ValueError):  # it has not begun
        return False
    # What it writes when its rank ends is there before it is gone.
    is_gone = host == socket.gethostname() and state_of(int(process)) in ("", "Z", "X")
    return is_gone and not failure_file(folder, rank).exists()


def told_of(folder: str, ranks: int) -> list[dict[str, Any]]:
    """What the processes that have ended say about it."""
    told = []
    for rank in range(ranks):
        with contextlib.suppress(OSError, ValueError):
            told.append(json.loads(failure_file(folder, rank).read_text(encoding="utf-8")))
    return told


def has_failed(folder: str, ranks: int) -> bool:
    """Whether a process has said that it failed."""
    return any(told["reason"] for told in told_of(folder, ranks))


def state_of(process: int) -> str:
    """The letter of proc(5) for what a process is doing; "" where there is none."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[0]


class SignsOfLife:
    """Writes them in a thread, from now on.

    Args:
        folder: of the job; None to write none.
        rank: number of this process.
    """

    def __init__(self, folder: Optional[str], rank: int) -> None:
        self._waiting_since = 0.0
        if folder is not None:
            path = sign_file(folder, rank)
            threading.Thread(target=self._write, args=(path,), daemon=True).start()

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Within: computing waits for other processes."""
        self._waiting_since = time.time()
        try:
            yield
        finally:
            self._waiting_since = 0.0

    def _write(self, path: Path) -> None:
        while True:
            since = self._waiting_since
            waited = time.time() - since if since else 0.0
            text = f"{waited:12.1f}"
            try:
                write_whole(path, text)
            except OSError:  # the disk is full, and what is there takes no more room
                with contextlib.suppress(OSError), open(path, "r+", encoding="utf-8") as file:
                    file.write(text)
            time.sleep(EVERY_S)


def write_whole(path: Path, text: str) -> None:
    """Writes a small file so that readers see all of it or what was there before."""
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
