"""One process of the benchmark `scale`: times its steps, and predicts those on more wafers.

FOLDER/task.json says what to run; the first process writes FOLDER/found.json. With a number it is
one of several independent wafers that begin to be timed together, so that a wafer is measured that
shares its computer with others, without messages.
"""

from __future__ import annotations

import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import training
from benchmarks.models import make_input_fn
from cerebras_tf.api import mpi
from cerebras_tf.errors import CerebrasError
from cerebras_tf.ir.program import Program
from cerebras_tf.ir.schedule import Entry, Run
from cerebras_tf.runtime.collective_plan import sent_bytes
from cerebras_tf.runtime.scale import Link, ScaledStep, scaled_step
from cerebras_tf.runtime.session import Session
from cerebras_tf.swarmx.swarm import Array, Pending, Swarm, Traffic

# Steps before those that are timed: kernels are compiled, memory is touched.
WARM_UP_STEPS = 2
_LARGE_BYTES, _TRIALS = 1 << 26, 5
_READY_S = 600.0  # the longest wait for other processes


class LayerTimes:
    """A listener that sums the seconds of each step by layer and direction."""

    def __init__(self) -> None:
        self._steps: list[dict[tuple[int, str], float]] = []
        self._seconds: dict[tuple[int, str], float] = defaultdict(float)
        self._start = 0.0

    def end_step(self) -> None:
        """Counts a step."""
        self._steps.append(self._seconds)
        self._seconds = defaultdict(float)

    def forget(self) -> None:
        """Counts no step so far."""
        self._steps.clear()
        self._seconds.clear()

    def medians(self) -> dict[tuple[int, str], float]:
        """Of the steps that count."""
        first = self._steps[0]
        return {key: statistics.median(step[key] for step in self._steps) for key in first}

    def begin(self, program: Program) -> None:
        """Nothing: the hook knows when a training step ends."""

    def before(self, entry: Entry) -> None:
        """Notes the time."""
        self._start = time.perf_counter()

    def after(self, entry: Entry) -> None:
        """Adds what a run took."""
        if isinstance(entry, Run):
            self._seconds[entry.layer, entry.direction] += time.perf_counter() - self._start


def make_hook(task: dict[str, Any], folder: Path, number: int) -> Any:
    """A hook that times steps, and in the end writes what was found by the first process."""
    import tensorflow as tf

    from cerebras_tf.estimator.call import enclosing_training

    class TimingHook(tf.estimator.SessionRunHook):
        """Times steps after the warm-up, and the layers of the wafer's schedule in them."""

        def begin(self) -> None:
            """Listens to the wafer's schedule."""
            call = enclosing_training()
            assert call is not None and call.model is not None
            self.step = call.model.step
            self.times = LayerTimes()
            assert isinstance(self.step.session, Session)
            self.step.session.listen(self.times)
            self.step_s: list[float] = []
            self.made = 0

        def before_run(self, run_context: Any) -> Any:
            """Begins to time a step."""
            self.start = time.perf_counter()

        def after_run(self, run_context: Any, run_values: Any) -> None:
            """Ends it; steps of the warm-up do not count."""
            self.made += 1
            if self.made <= WARM_UP_STEPS:
                self.times.forget()
                self.before = replace(self.step.swarm.traffic)
                if self.made == WARM_UP_STEPS:
                    wait_for_all(folder, number, task["together"])
                return
            self.step_s.append(time.perf_counter() - self.start)
            self.times.end_step()

        def end(self, session: Any) -> None:
            """Writes what was found."""
            found = measurements(self.step, self.step_s, self.times, self.before, task)
            if mpi.swarm().rank == number == 0:
                (folder / "found.json").write_text(json.dumps(found), encoding="utf-8")

    return TimingHook()


def wait_for_all(folder: Path, number: int, processes: int) -> None:
    """Waits until all processes are ready.

    Raises:
        CerebrasError: one is not ready in time.
    """
    (folder / f"here_{number}").touch()
    end = time.monotonic() + _READY_S
    while len(list(folder.glob("here_*"))) < processes:
        if time.monotonic() > end:
            raise CerebrasError(
                f"scale: {processes} processes must begin together. Received: fewer within "
                f"{_READY_S:g} s. Look at what they have printed."
            )
        time.sleep(0.01)


def measurements(
    step: Any, step_s: Sequence[float], listener: LayerTimes, before: Traffic, task: dict[str, Any]
) -> dict[str, Any]:
    """What a run measured.

    Args:
        step: of the estimator, on the wafer.
        step_s: seconds of the steps that count.
        listener: of those steps.
        before: what was sent and received before them.
        task: what to predict from them.
    """
    now, steps = step.swarm.traffic, len(step_s)
    times = listener.medians()
    others_s = max(statistics.median(step_s) - sum(times.values()), 0.0)
    busy_s, waited_s = now.busy_s - before.busy_s, now.waited_s - before.waited_s
    predicted = [
        scaled_step(step.source.compile_for(wafers), times, others_s, Link(**link))
        for wafers, link in task["predict"]
    ]
    return {
        "step_s": step_s,
        "sent_bytes": (now.sent_bytes - before.sent_bytes) / steps,
        "planned_bytes": sent_bytes(step.program)[step.swarm.rank],
        "hidden": 1 - min(waited_s / busy_s, 1.0) if busy_s else 1.0,
        "predicted": list(map(_shown, predicted)),
    }


def _shown(step: ScaledStep) -> dict[str, Any]:
    return {
        "wafers": step.wafers,
        "step_s": step.step_s,
        "hidden": step.hidden_share,
        "sent_bytes": max(step.sent_bytes),
    }


def measured_link(swarm: Swarm) -> dict[str, float]:
    """Speed and latency of messages between wafers here, and what they take of a core.

    Where processes share a computer, its cores move every byte and add up gradients.
    """
    large = np.ones(_LARGE_BYTES // 4, np.float32)
    small = np.ones(1, np.float32)
    swarm.start_mean(large, 0).wait()  # memory is touched
    latency_s = min(_seconds(swarm, swarm.start_copy, small) for _ in range(_TRIALS))
    found = {"latency_s": latency_s}
    for kind, start in (("copy", swarm.start_copy), ("mean", swarm.start_mean)):
        begun_s = time.process_time()
        best_s = min(_seconds(swarm, start, large) for _ in range(_TRIALS))
        core_s = max(swarm.objects(time.process_time() - begun_s)) / _TRIALS
        found[f"{kind}_bytes_per_s"] = _LARGE_BYTES / max(best_s - latency_s, 1e-9)
        found[f"{kind}_core_s_per_byte"] = core_s / _LARGE_BYTES
    return {key.removeprefix("copy_"): value for key, value in found.items()}


def _seconds(swarm: Swarm, start: Callable[[Array, int], Pending], array: Array) -> float:
    """Seconds that an array takes from wafer to wafer, of the slowest."""
    swarm.objects(None)
    begun = time.perf_counter()
    start(array, 0).wait()
    found: float = max(swarm.objects(time.perf_counter() - begun))
    return found


def main(folder: Path, number: int = 0) -> None:
    """Trains some steps, and writes what was found."""
    task = json.loads((folder / "task.json").read_text(encoding="utf-8"))
    shape = training.Shape(**task["shape"])
    swarm = mpi.swarm()
    link = measured_link(swarm) if swarm.size > 1 else None
    model_dir = str(folder / f"model_{number}")
    estimator = training.make_estimator(shape, training.WAFER, training.Comparison(), model_dir)
    steps = WARM_UP_STEPS + task["steps"]
    hook = make_hook(task, folder, number)
    estimator.train(make_input_fn(shape), hooks=[hook], steps=steps)
    if link is not None and swarm.rank == 0:
        path = folder / "found.json"
        found = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps({**found, "link": link}), encoding="utf-8")
