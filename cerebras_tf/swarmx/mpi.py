"""Wafers as ranks of MPI: means and copies by messages between two ranks, sent by threads.

MPI's own collectives add in an unspecified order, and make progress only inside calls. So
arrays are cut into chunks that threads send and receive in the background, each over a communicator
of its own. Waiting threads sleep, so that cores are free to compute; if computing waits for them,
they poll without a pause at first.

A mean for one wafer is summed along a chain: each wafer adds its own array to the one it receives.
A mean for all wafers is cut into one part per wafer: each wafer sums one part and sends it to all
(reduce-scatter and all-gather, Rabenseifner, ICCS 2004), so a wafer sends 2 (N-1)/N of the bytes. A
copy passes along a chain too, so that no wafer sends it more than once.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hmac
import os
import pickle
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Optional

import numpy as np

from cerebras_tf.errors import ConfigError, SwarmError
from cerebras_tf.installing import pip_install
from cerebras_tf.swarmx import job
from cerebras_tf.swarmx.heartbeats import HEARTBEAT_S, Heartbeat, HeartbeatReader, wait_for_ranks
from cerebras_tf.swarmx.swarm import Alone, Array, Observer, Pending, Swarm, Traffic

CHUNK_BYTES = 4 << 20
_CODE_BYTES = 32  # of HMAC-SHA256
# Sleep between two polls: the first, the longest, and the longest if computing waits. A poll takes
# tens of microseconds of a core.
_FIRST_NAP_S, _LONGEST_NAP_S, _AWAITED_NAP_S = 20e-6, 2e-3, 200e-6
_AWAKE_S = 1e-3  # that it does not sleep at first where computing waits


@functools.cache
def swarm() -> Swarm:
    """The wafers of this job; starts MPI if there are several.

    Raises:
        ConfigError: MPI is missing, or has another number of ranks than the launcher asked for.
    """
    size = job.wafers()
    return Alone() if size == 1 else MpiSwarm(size)


_has_failed = False


def fail() -> None:
    """Marks this process as failed, so that it ends without waiting for others."""
    global _has_failed
    _has_failed = True


class MpiSwarm:
    """The ranks of MPI's world.

    Raises:
        ConfigError: MPI is missing, has another number of ranks, or allows calls of one thread
            only.
    """

    def __init__(self, size: int) -> None:
        try:
            import mpi4py

            mpi4py.rc.finalize = False  # which would wait forever for ranks that failed
            self._heartbeat = Heartbeat(job.folder(), job.rank())
            self._wait_for_ranks(size)
            from mpi4py import MPI
        except ImportError as error:
            raise ConfigError(
                f"num_csx: mpi4py and mpich must be installed for {size} wafers. Received: "
                f"{error}. Start with csrun_wse, which installs them, or run "
                f"`{pip_install('mpi4py mpich')}`."
            ) from error
        self._mpi: Any = MPI
        check_threads(MPI)
        world = MPI.COMM_WORLD
        if world.size != size:
            raise ConfigError(
                f"num_csx: MPI must have {size} ranks. Received: a world of {world.size}. The "
                "launcher and the MPI library do not match. Use csrun_wse, or with Slurm srun "
                "--mpi=pmi2, and the mpich of this environment."
            )
        self.rank: int = world.rank
        self.size: int = world.size
        self._world = world
        self._small = world.Dup()
        self._gathered = Traffic()
        self._messages = 0
        self._weights = _Lane(world.Dup(), "weights", self._heartbeat)
        self._gradients = _Lane(world.Dup(), "gradients", self._heartbeat)
        atexit.register(self._finalize)

    def start_mean(self, array: Array, root: Optional[int] = None) -> Pending:
        flat = _flat(array)
        start, size = self._gradients.start, flat.nbytes
        if root is None:
            return start("mean for all", size, lambda lane: _mean_for_all(lane, flat))
        return start(f"mean for {root}", size, lambda lane: _mean_for_one(lane, flat, root))

    def start_copy(self, array: Array, root: int) -> Pending:
        flat = _flat(array).view(np.uint8)
        return self._weights.start(
            f"copy of {root}", flat.nbytes, lambda lane: _copy_along(lane, flat, root)
        )

    def observe(self, observer: Observer) -> None:
        self._weights.observer = self._gradients.observer = observer

    def gather(self, array: Array) -> Array:
        result = np.empty((self.size, *array.shape), array.dtype)
        parts = [x.reshape(-1).view(np.uint8) for x in (np.array(array, order="C"), result)]
        with self._heartbeat.waiting():
            _finish([self._small.Iallgather(*parts)], is_awaited=lambda: True)
        self._gathered.sent_bytes += (self.size - 1) * array.nbytes
        self._gathered.received_bytes += (self.size - 1) * array.nbytes
        return result

    def objects(self, item: Any) -> list[Any]:
        text = pickle.dumps(item)
        number, self._messages = self._messages, self._messages + 1
        own = np.frombuffer(job.sign(text, self.rank, number) + text, np.uint8)
        sizes = self.gather(np.array(own.size, np.int64))
        padded = np.zeros(int(sizes.max()), np.uint8)
        padded[: own.size] = own
        found = self.gather(padded)
        texts = [row[:size].tobytes() for row, size in zip(found, sizes)]
        return [_loaded(text, rank, number) for rank, text in enumerate(texts)]

    @property
    def traffic(self) -> Traffic:
        parts = (self._gathered, self._weights.traffic, self._gradients.traffic)
        return Traffic(
            sum(part.sent_bytes for part in parts),
            sum(part.received_bytes for part in parts),
            sum(part.busy_s for part in parts),
            sum(part.waited_s for part in parts),
        )

    def _wait_for_ranks(self, size: int) -> None:
        """Waits with a heartbeat until all ranks have started; MPI itself waits without one."""
        folder = job.folder()
        if folder is not None:
            with self._heartbeat.waiting():
                wait_for_ranks(folder, size)

    def _finalize(self) -> None:
        """Ends MPI once all ranks are here; a rank that has failed does not wait for them.

        Nor does a rank for which the others wait: its program has ended by itself, as by sys.exit,
        and the launcher must see how.
        """
        # Python sets sys.last_value for an exception that nobody caught.
        if _has_failed or hasattr(sys, "last_value") or self._mpi.Is_finalized():
            return
        barrier = self._world.Ibarrier()
        folder = job.folder()
        beats = HeartbeatReader(folder or "")
        since = beats.now()
        look = time.monotonic() + HEARTBEAT_S
        while not barrier.Test():
            if folder and time.monotonic() > look:
                beats.now()
                if any(beats.has_waited_since(rank, since) for rank in range(self.size)):
                    return
                look += HEARTBEAT_S
            time.sleep(_LONGEST_NAP_S)
        self._mpi.Finalize()


def _loaded(message: bytes, rank: int, number: int) -> Any:
    """The object of a message, which must come from a process of this job."""
    code, text = message[:_CODE_BYTES], message[_CODE_BYTES:]
    if not hmac.compare_digest(code, job.sign(text, rank, number)):
        raise SwarmError(
            f"wafers: message {number} of rank {rank} must be signed with the secret of this job. "
            "Received: another code. Start all ranks with one csrun_wse."
        )
    return pickle.loads(text)


def check_threads(mpi: Any) -> None:
    """Raises ConfigError if MPI does not allow calls from several threads at once."""
    if mpi.Query_thread() < mpi.THREAD_MULTIPLE:
        raise ConfigError(
            "num_csx: MPI must support MPI_THREAD_MULTIPLE. Received: thread level "
            f"{mpi.Query_thread()} of {mpi.THREAD_MULTIPLE}. Unset MPI4PY_RC_THREADS and "
            "MPI4PY_RC_THREAD_LEVEL, do not initialize MPI before cerebras_tf, and use the mpich "
            "that csrun_wse installs."
        )


class _Lane:
    """A thread with its own communicator, which runs tasks sequentially."""

    def __init__(self, ranks: Any, name: str, heartbeat: Heartbeat) -> None:
        self.ranks = ranks
        self._heartbeat = heartbeat
        self.rank: int = ranks.rank
        self.size: int = ranks.size
        self.traffic = Traffic()
        self.observer: Optional[Observer] = None
        self.waiting = 0  # those who wait for one of its tasks
        self._tasks: queue.SimpleQueue[_Task] = queue.SimpleQueue()
        self._scratch: dict[int, Array] = {}
        threading.Thread(target=self._work, name=f"swarm {name}", daemon=True).start()

    def start(self, what: str, size: int, do: Callable[[_Lane], None]) -> Pending:
        """Queues a transfer of `size` bytes."""
        task = _Task(what, size, do, self)
        self._tasks.put(task)
        return task

    def _work(self) -> None:
        while True:
            task = self._tasks.get()
            start = time.perf_counter()
            try:
                task.do(self)
            except BaseException as error:
                task.error = error
            end = time.perf_counter()
            self.traffic.busy_s += end - start
            task.done.set()
            if self.observer is not None:
                self.observer(task.what, start, end, task.size)

    def finish(self, requests: Sequence[Any]) -> None:
        """Waits for messages."""
        _finish(requests, self._is_awaited)

    def _is_awaited(self) -> bool:
        return self.waiting > 0

    @contextlib.contextmanager
    def awaited(self) -> Iterator[None]:
        """Within: computing waits for a task of this lane."""
        self.waiting += 1
        start = time.perf_counter()
        try:
            with self._heartbeat.waiting():
                yield
        finally:
            self.waiting -= 1
            self.traffic.waited_s += time.perf_counter() - start

    def scratch(self, number: int, like: Array) -> Array:
        """Memory for a chunk with the size and dtype of `like`; its content is undefined."""
        held = self._scratch.get(number)
        if held is None or held.nbytes < like.nbytes:
            held = self._scratch[number] = np.empty(max(like.nbytes, CHUNK_BYTES), np.uint8)
        return held[: like.nbytes].view(like.dtype)

    def send(self, part: Array, to: int) -> Any:
        """Starts to send."""
        self.traffic.sent_bytes += part.nbytes
        return self.ranks.Isend(part.view(np.uint8), to)

    def receive(self, part: Array, source: int) -> Any:
        """Starts to receive."""
        self.traffic.received_bytes += part.nbytes
        return self.ranks.Irecv(part.view(np.uint8), source)


class _Task:
    def __init__(self, what: str, size: int, do: Callable[[_Lane], None], lane: _Lane) -> None:
        self.what = what
        self.size = size
        self.do = do
        self.done = threading.Event()
        self.error: Optional[BaseException] = None
        self._lane = lane

    def wait(self) -> None:
        if not self.done.is_set():
            with self._lane.awaited():
                self.done.wait()
        if self.error is not None:
            raise SwarmError(
                f"wafers: every message must arrive. Received: {type(self.error).__name__}: "
                f"{self.error}. See the logs of the other ranks, and resume from the last "
                "checkpoint."
            ) from self.error


def _flat(array: Array) -> Array:
    flat = array.reshape(-1)
    if not np.shares_memory(flat, array) and array.size:
        raise ValueError("swarm: an array must be in C order. Received: another. Copy it.")
    return flat


def _chunks(size: int, most: int) -> Iterator[slice]:
    for start in range(0, size, most):
        yield slice(start, min(start + most, size))


def _finish(requests: Sequence[Any], is_awaited: Callable[[], bool] = lambda: False) -> None:
    """Waits for messages, sleeping between polls.

    Args:
        requests: of MPI.
        is_awaited: returns whether computing waits, so that its core is free to poll.
    """
    nap, awake_until = _FIRST_NAP_S, time.perf_counter() + _AWAKE_S
    for request in requests:
        while not request.Test():
            awaited = is_awaited()
            if awaited and time.perf_counter() < awake_until:
                os.sched_yield()
                continue
            time.sleep(min(nap, _AWAITED_NAP_S) if awaited else nap)
            nap = min(1.5 * nap, _LONGEST_NAP_S)


def _mean_for_one(lane: _Lane, flat: Array, root: int) -> None:
    """Sums along a chain of wafers that ends at the root."""
    place = (lane.rank - root) % lane.size
    before, after = (lane.rank + 1) % lane.size, (lane.rank - 1) % lane.size
    chunks = list(_chunks(flat.size, max(CHUNK_BYTES // flat.itemsize, 1)))
    receives = place + 1 < lane.size

    def post(number: int) -> Optional[tuple[Array, Any]]:
        if not receives or number >= len(chunks):
            return None
        held = lane.scratch(number % 2, flat[chunks[number]])
        return held, lane.receive(held, before)

    posted = post(0)
    going: list[Any] = []
    for number, chunk in enumerate(chunks):
        following = post(number + 1)
        part = flat[chunk]
        if posted is not None:
            held, request = posted
            lane.finish([request])
            np.add(part, held, out=part)
        if place:
            going.append(lane.send(part, after))
            if len(going) > 2:
                lane.finish([going.pop(0)])
        else:
            np.multiply(part, flat.dtype.type(1 / lane.size), out=part)
        posted = following
    lane.finish(going)


def _mean_for_all(lane: _Lane, flat: Array) -> None:
    """Each wafer sums its part of every block and sends it to the others."""
    most = max(CHUNK_BYTES // flat.itemsize, 1)
    scale = flat.dtype.type(1 / lane.size)
    others = [(lane.rank + i) % lane.size for i in range(1, lane.size)]
    for block in _chunks(flat.size, most * lane.size):
        whole = flat[block]
        cuts = [i * whole.size // lane.size for i in range(lane.size + 1)]
        parts = [whole[start:end] for start, end in zip(cuts, cuts[1:])]
        own = parts[lane.rank]
        memory = [lane.scratch(i, own) for i in range(len(others))]
        coming = [lane.receive(held, source) for held, source in zip(memory, others)]
        going = [lane.send(parts[other], other) for other in others]
        for held, request in zip(memory, coming):
            lane.finish([request])
            np.add(own, held, out=own)
        np.multiply(own, scale, out=own)
        lane.finish(going)  # their memory is where the means arrive
        coming = [lane.receive(parts[other], other) for other in others]
        lane.finish([*coming, *(lane.send(own, other) for other in others)])


def _copy_along(lane: _Lane, flat: Array, root: int) -> None:
    """Copies along a chain of wafers that begins at the root."""
    place = (lane.rank - root) % lane.size
    before, after = (lane.rank - 1) % lane.size, (lane.rank + 1) % lane.size
    chunks = list(_chunks(flat.size, CHUNK_BYTES))
    coming = [lane.receive(flat[c], before) for c in chunks[:2]] if place else []
    going: list[Any] = []
    for number, chunk in enumerate(chunks):
        if place:
            lane.finish([coming.pop(0)])
            if number + 2 < len(chunks):
                coming.append(lane.receive(flat[chunks[number + 2]], before))
        if place + 1 < lane.size:
            going.append(lane.send(flat[chunk], after))
            if len(going) > 2:
                lane.finish([going.pop(0)])
    lane.finish(going)
