"""The memory that activations of a step may take, and the error if they do not fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Optional

from cerebras_tf.compiler.fit_activations import Budget, Fitting, SpillSpace
from cerebras_tf.compiler.pipeline import Options
from cerebras_tf.errors import BatchCapacityError
from cerebras_tf.ir.program import Program
from cerebras_tf.memoryx.disk_speed import measured_disk_speeds
from cerebras_tf.memoryx.store import Store
from cerebras_tf.ops.cost import Speeds
from cerebras_tf.quantities import gigabytes_not_below
from cerebras_tf.runtime.backend import Backend
from cerebras_tf.runtime.speeds import measured_speeds
from cerebras_tf.runtime.streaming_plan import plan_streaming
from cerebras_tf.swarmx.swarm import Swarm


class ActivationBudget:
    """The memory for activations and scratch memory of one session.

    Args:
        memory_gb: gigabytes set by the user; None for what the computer has.
        trains: whether steps train. Others keep no activations, so there is nothing to choose.
        swarm: the wafers that make the steps together. They must choose alike, so all use the
            speeds measured by the first.
        available: returns the bytes that the session has for activations.
        precision: see Options.
        speeds: measures the computer that runs the steps; None for this one.
    """

    def __init__(
        self,
        store: Store,
        backend: Backend,
        memory_gb: Optional[float],
        trains: bool,
        swarm: Swarm,
        available: Callable[[], int],
        precision: str = "float32",
        speeds: Optional[Callable[[bool], Speeds]] = None,
    ) -> None:
        self._store = store
        self._backend = backend
        self._memory_gb = memory_gb
        self._trains = trains
        self._available = available
        rounded = precision == "bfloat16"
        measure = speeds or (lambda rounded: measured_speeds(rounded=rounded))
        self._speeds: Callable[[], Speeds] = partial(measure, rounded)
        self._disk_speeds: Callable[[], Optional[tuple[float, float]]] = self._measure_disk
        if swarm.size > 1 and trains:
            of_first = _of_first(swarm, self._speeds)
            self._speeds = lambda: of_first
            if self.spills:
                of_disk = _of_first(swarm, self._measure_disk)
                self._disk_speeds = lambda: of_disk

    def bytes(self) -> Optional[int]:
        """Bytes that activations may take; None if there is no choice."""
        if not self._trains:
            return None
        if self._memory_gb is not None:
            return int(self._memory_gb * 1e9)
        available = self._available()
        return available if available > 0 else None  # the variables alone do not fit: raised later

    @property
    def spills(self) -> bool:
        """Whether activations may be spilled to disk.

        Those whose size differs from batch to batch, as after padding removal, are not spilled.
        """
        return self._store.folder is not None

    def options(self, options: Options, found: list[Fitting]) -> Options:
        """Options with which activations fit; appends to `found` what was chosen for that."""
        available = self.bytes()
        if available is None:
            return options
        is_given = self._memory_gb is not None  # its error shows the least memory
        budget = Budget(available, self._speeds, found.append, self._spill_space, is_given)
        return replace(options, budget=budget)

    def check(self, fitting: Fitting) -> None:
        """Raises BatchCapacityError if activations take more than the user allowed."""
        if self._memory_gb is not None and not fitting.fits:
            raise does_not_fit(fitting, self._memory_gb)

    def _spill_space(self, program: Program) -> Optional[SpillSpace]:
        """The disk space that activations may be spilled to; None if weights are not on files."""
        most = self._store.memory_limit
        speeds = None if self._store.folder is None else self._disk_speeds()
        if most is None or speeds is None:
            return None
        read, write = speeds
        wafer = 0 if program.wafers > 1 else None  # all wafers must find the same
        specs = self._store.specs.values()
        plan = plan_streaming(program, specs, most, self._backend, wafer)
        return SpillSpace(most, read, write, plan.bytes_read / read + plan.bytes_written / write)

    def _measure_disk(self) -> Optional[tuple[float, float]]:
        """Bytes per second that the disk reads and writes; None if it is full."""
        assert self._store.folder is not None
        try:
            return measured_disk_speeds(self._store.folder)
        except OSError:  # no space to measure with
            return None


def _of_first(swarm: Swarm, measure: Callable[[], Any]) -> Any:
    """What the first wafer measured."""
    return swarm.objects(measure() if swarm.rank == 0 else None)[0]


def does_not_fit(fitting: Fitting, memory_gb: float) -> BatchCapacityError:
    """The error if activations take more memory than allowed, also with recomputation."""
    needed, planned = (size / 1e9 for size in (fitting.needed_bytes, fitting.planned_bytes))
    settings = [f"Set it to {gigabytes_not_below(fitting.planned_bytes)}"]
    if fitting.least_bytes is not None and fitting.least_bytes < fitting.planned_bytes:
        settings.append(f"to {gigabytes_not_below(fitting.least_bytes)} with memoryx_dir")
    how = "with recomputation and spilling" if fitting.spilled_bytes else "with recomputation"
    return BatchCapacityError(
        "wafer_memory_gb: activations, gradients and scratch memory must fit into this memory. "
        f"Received: {memory_gb:g}; needed: {needed:.3g} GB, or {planned:.3g} GB {how}, "
        f"{planned - memory_gb:.3g} GB too much. {', or '.join(settings)}, or use shorter "
        "sequences.",
        fitting.planned_bytes,
        fitting.budget_bytes,
    )
