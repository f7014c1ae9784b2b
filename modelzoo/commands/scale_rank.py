"""One wafer's process of `cerebras-tf scale`: times its steps, and predicts those on more wafers.

    python -m modelzoo.commands.scale_rank FOLDER

FOLDER/task.json says what to run; the first process writes FOLDER/found.json.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from cerebras_tf.ir.program import Program
from cerebras_tf.ir.schedule import Run, Step
from cerebras_tf.runtime.exchange_plan import sent_bytes
from cerebras_tf.runtime.scale import Link, ScaledStep, scaled_step
from cerebras_tf.swarmx import mpi
from cerebras_tf.swarmx.swarm import Exchange, Swarm
from modelzoo.commands import bench
from modelzoo.commands.bench_models import make_input_fn

# Steps before those that are timed: kernels are compiled, memory is touched.
WARM_UP_STEPS = 2
_LARGE_BYTES, _TRIALS = 1 << 26, 5


class LayerTimes:
    """A listener that adds up seconds of each step by layer and direction."""

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
        """Nothing: the hook knows when a step of training ends."""

    def before(self, step: Step) -> None:
        """Notes the time."""
        self._start = time.perf_counter()

    def after(self, step: Step) -> None:
        """Adds what a run took."""
        if isinstance(step, Run):
            self._seconds[step.layer, step.direction] += time.perf_counter() - self._start


def make_hook(task: dict[str, Any], folder: Path) -> Any:
    """A hook that times steps, and in the end writes what was found."""
    import tensorflow as tf

    from cerebras_tf.estimator.call import training_around

    class TimingHook(tf.estimator.SessionRunHook):
        """Times steps behind the warm-up, and layers of the wafer's schedule in them."""

        def begin(self) -> None:
            """Listens to the wafer's schedule."""
            call = training_around()
            assert call is not None and call.model is not None
            self.step = call.model.step
            self.times = LayerTimes()
            self.step.session.listen(self.times)
            self.step_s: list[float] = []
            self.made = 0

        def before_run(self, run_context: Any) -> Any:
            """Begins to time a step."""
            self.start = time.perf_counter()

        def after_run(self, run_context: Any, run_values: Any) -> None:
            """Ends it; the first ones do not count."""
            self.made += 1
            if self.made <= WARM_UP_STEPS:
                self.times.forget()
                self.before = replace(self.step.swarm.exchange)
                return
            self.step_s.append(time.perf_counter() - self.start)
            self.times.end_step()

        def end(self, session: Any) -> None:
            """Writes what was found."""
            found = what_was_found(self.step, self.step_s, self.times, self.before, task)
            if mpi.swarm().rank == 0:
                (folder / "found.json").write_text(json.dumps(found), encoding="utf-8")

    return TimingHook()


def what_was_found(
    step: Any, step_s: Sequence[float], listener: LayerTimes, before: Exchange, task: dict[str, Any]
) -> dict[str, Any]:
    """What a run tells.

    Args:
        step: of the estimator, on the wafer.
        step_s: seconds of the steps that count.
        listener: has heard them.
        before: what was exchanged before them.
        task: what to predict from them.
    """
    now, steps = step.swarm.exchange, len(step_s)
    times = listener.medians()
    beside_s = max(statistics.median(step_s) - sum(times.values()), 0.0)
    busy_s, waited_s = now.busy_s - before.busy_s, now.waited_s - before.waited_s
    predicted = [
        scaled_step(step.compiled_for(wafers), _slowed(times, slow), beside_s, Link(**link))
        for wafers, slow, link in task["predict"]
    ]
    return {
        "step_s": step_s,
        "sent_bytes": (now.sent_bytes - before.sent_bytes) / steps,
        "planned_bytes": sent_bytes(step.program)[step.swarm.rank],
        "hidden": 1 - min(waited_s / busy_s, 1.0) if busy_s else 1.0,
        "predicted": list(map(_shown, predicted)),
    }


def _slowed(times: dict[tuple[int, str], float], by: float) -> dict[tuple[int, str], float]:
    return {key: by * seconds for key, seconds in times.items()}


def _shown(step: ScaledStep) -> dict[str, Any]:
    return {
        "wafers": step.wafers,
        "step_s": step.step_s,
        "hidden": step.hidden_share,
        "sent_bytes": max(step.sent_bytes),
    }


def measured_link(swarm: Swarm) -> dict[str, float]:
    """Speed and latency of messages between two wafers that do nothing else."""
    large = np.ones(_LARGE_BYTES, np.uint8)
    small = np.ones(1, np.uint8)
    seconds: dict[int, list[float]] = {1: [], _LARGE_BYTES: []}
    for _ in range(_TRIALS):
        for array in (small, large):
            swarm.objects(None)
            start = time.perf_counter()
            swarm.start_copy(array, 0).wait()
            seconds[array.nbytes].append(max(swarm.objects(time.perf_counter() - start)))
    latency_s = min(seconds[1])
    bytes_per_s = _LARGE_BYTES / max(min(seconds[_LARGE_BYTES]) - latency_s, 1e-9)
    return {"bytes_per_s": bytes_per_s, "latency_s": latency_s}


def main(folder: Path) -> None:
    """Trains some steps, and writes what was found."""
    task = json.loads((folder / "task.json").read_text(encoding="utf-8"))
    shape = bench.Shape(**task["shape"])
    swarm = mpi.swarm()
    link = measured_link(swarm) if swarm.size > 1 else None
    estimator = bench.make_estimator(shape, bench.WAFER, bench.Comparison(), str(folder / "model"))
    steps = WARM_UP_STEPS + task["steps"]
    estimator.train(make_input_fn(shape), hooks=[make_hook(task, folder)], steps=steps)
    if link is not None and swarm.rank == 0:
        path = folder / "found.json"
        found = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps({**found, "link": link}), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
