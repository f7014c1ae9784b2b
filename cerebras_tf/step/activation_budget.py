"""How much memory activations of a step may take, and what is said of fitting them in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Optional

from cerebras_tf.compiler.fit_activations import Budget, Fitting, SpillSpace
from cerebras_tf.compiler.pipeline import Options
from cerebras_tf.console.log import say
from cerebras_tf.errors import BatchCapacityError
from cerebras_tf.ir.program import Program
from cerebras_tf.memoryx.disk_speed import measured_disk_speeds
from cerebras_tf.memoryx.store import Store
from cerebras_tf.ops.cost import Speeds
from cerebras_tf.quantities import gigabytes_not_below
from cerebras_tf.runtime.backend import Backend
from cerebras_tf.runtime.protocol import SessionProtocol
from cerebras_tf.runtime.speeds import measured_speeds
from cerebras_tf.runtime.streaming_plan import plan_streaming
from cerebras_tf.swarmx.swarm import Swarm


class ActivationRoom:
    """The memory for activations of one session.

    Args:
        session: whose steps they are of.
        store: its variables.
        backend: runs them.
        memory_gb: what was set for them; None for what the machine has.
        trains: whether steps train; else nothing is kept between passes, and there is no choice.
        swarm: the wafers that make the steps together, which must choose alike: they go by the
            speeds of the first, told here.
    """

    def __init__(
        self,
        session: SessionProtocol,
        store: Store,
        backend: Backend,
        memory_gb: Optional[float],
        trains: bool,
        swarm: Swarm,
    ) -> None:
        self._session = session
        self._store = store
        self._backend = backend
        self._memory_gb = memory_gb
        self._trains = trains
        self._speeds: Callable[[], Speeds] = measured_speeds
        self._disk_speeds: Callable[[], Optional[tuple[float, float]]] = self._speeds_of_disk
        if swarm.size > 1 and trains:
            speeds = _of_first(swarm, measured_speeds)
            self._speeds = lambda: speeds
            if self.spills:
                of_disk = _of_first(swarm, self._speeds_of_disk)
                self._disk_speeds = lambda: of_disk

    def bytes(self) -> Optional[int]:
        """Bytes that activations may take; None where there is no choice what they take."""
        if not self._trains:
            return None
        if self._memory_gb is not None:
            return int(self._memory_gb * 1e9)
        room = self._session.activation_limit
        return room if room > 0 else None  # not even the variables fit: that will be said

    @property
    def spills(self) -> bool:
        """Whether activations may rest on a disk.

        Those whose size differs from batch to batch, as with padding left out, are not spilled.
        """
        return self._store.folder is not None

    def options(self, options: Options, found: list[Fitting]) -> Options:
        """How to compile, so that activations fit; what was chosen for that goes to a list."""
        room = self.bytes()
        if room is None:
            return options
        budget = Budget(room, self._speeds, found.append, self._spill_room)
        return replace(options, budget=budget)

    def say(self, fitting: Fitting) -> None:
        """Says what was computed twice or spilled.

        Raises:
            BatchCapacityError: activations take more than was set.
        """
        if self._memory_gb is None or fitting.fits:
            say("%s", fitting)
            return
        raise does_not_fit(fitting, self._memory_gb)

    def _spill_room(self, program: Program) -> Optional[SpillSpace]:
        """Where activations of a program may rest; None where weights are not on files."""
        most = self._store.memory_limit
        speeds = None if self._store.folder is None else self._disk_speeds()
        if most is None or speeds is None:
            return None
        read, write = speeds
        wafer = 0 if program.wafers > 1 else None  # all must find the same
        specs = self._store.specs.values()
        plan = plan_streaming(program, specs, most, self._backend, wafer)
        return SpillSpace(most, read, write, plan.bytes_read / read + plan.bytes_written / write)

    def _speeds_of_disk(self) -> Optional[tuple[float, float]]:
        """Bytes a second that its disk reads and writes; None where it is full."""
        assert self._store.folder is not None
        try:
            return measured_disk_speeds(self._store.folder)
        except OSError:  # no space to measure with
            return None


def _of_first(swarm: Swarm, measure: Callable[[], Any]) -> Any:
    """What the first wafer measures, on all of them."""
    return swarm.objects(measure() if swarm.rank == 0 else None)[0]


def does_not_fit(fitting: Fitting, memory_gb: float) -> BatchCapacityError:
    """What must be said where everything that was tried takes more memory than was allowed."""
    needed, planned = (size / 1e9 for size in (fitting.needed_bytes, fitting.planned_bytes))
    settings = [f"Set it to {gigabytes_not_below(fitting.planned_bytes)}"]
    if fitting.least_bytes is not None and fitting.least_bytes < fitting.planned_bytes:
        settings.append(f"to {gigabytes_not_below(fitting.least_bytes)} with memoryx_dir")
    return BatchCapacityError(
        f"wafer_memory_gb: activations, gradients and scratch memory must fit in it. Received: "
        f"{memory_gb:g}; {needed:.3g} GB are needed, {planned:.3g} GB where layers are computed "
        f"twice{' or spilled' if fitting.spilled_bytes else ''}, {planned - memory_gb:.3g} GB too "
        f"much. {', or '.join(settings)}, or train on shorter sequences, or on smaller batches.",
        fitting.planned_bytes,
        fitting.budget_bytes,
    )
