"""Measures the time of a step without its kernels: GPT tiny, trained with kernels that do nothing.

Everything else is that of `cerebras-tf train`: tf.estimator's loop with its hooks, logging and
summaries, TensorFlow's session, and the executor of the program.
"""

from __future__ import annotations

import functools
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import Any, Optional
from unittest import mock

from modelzoo.commands.configs import config_path
from modelzoo.common.train.console import quiet_logging

MODEL, STEPS, WARM_UP_STEPS = "gpt3_tiny", 300, 50
# Parts of a step's time, each within the one before it.
STEP, SESSION, WAFER, INSTRUCTIONS = "step", "session", "wafer", "instructions"
Times = dict[str, list[float]]


class Clock:
    """Seconds of every step, by part.

    Attributes:
        times: of the steps that have ended.
    """

    def __init__(self) -> None:
        self.times: Times = defaultdict(list)
        self._spent: dict[str, float] = defaultdict(float)
        self._ended: Optional[float] = None

    def around(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, whose time counts as the part's."""

        @functools.wraps(function)
        def timed(*args: Any, **options: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*args, **options)
            finally:
                self._spent[part] += time.perf_counter() - start

        return timed

    def tick(self) -> None:
        """A step has ended."""
        now = time.perf_counter()
        if self._ended is not None:
            self._spent[STEP] = now - self._ended
            for part, seconds in self._spent.items():
                self.times[part].append(seconds)
        self._spent.clear()
        self._ended = time.perf_counter()


def idle_backend(swarm: Any, profiler: Any) -> tuple[Any, list[Any]]:
    """A backend that runs only the kernels that count steps."""
    import numpy as np

    from cerebras_tf.runtime.cpu import CpuBackend

    class IdleBackend(CpuBackend):
        """Results are the previous contents of their memory; new memory is zero."""

        def load(self, instruction: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> Any:
            if all(type.dtype == "int64" and type.shape == () for type in outputs):
                return super().load(instruction, inputs, outputs)
            made = [np.zeros(type.static_shape, type.storage_dtype) for type in outputs]
            return lambda arrays, out: made  # the executor uses those that have no memory yet

    return IdleBackend(swarm), []


@contextmanager
def watched(clock: Clock) -> Iterator[None]:
    """Within: training runs no kernels, and the clock has the times of its parts."""
    from cerebras_tf.frontend import model_step
    from cerebras_tf.runtime.executor import Executor
    from cerebras_tf.tf_compat.internals import client_session

    parts = (
        (SESSION, client_session.BaseSession, "_call_tf_sessionrun"),
        (WAFER, model_step.ModelStep, "run"),
        (INSTRUCTIONS, Executor, "execute"),
    )
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(model_step, "make_backend", idle_backend))
        for part, owner, name in parts:
            timed = clock.around(part, getattr(owner, name))
            stack.enter_context(mock.patch.object(owner, name, timed))
        yield


def measure(steps: int, repeats: bool) -> Times:
    """Seconds of the steps of a training, by part.

    Args:
        steps: how many are timed.
        repeats: whether the first batch comes again and again, so that the input has no work.
    """
    import tensorflow as tf

    from modelzoo.common.config.params import load_params
    from modelzoo.common.train.estimator import make_estimator
    from modelzoo.gpt3.data import INPUTS
    from modelzoo.gpt3.model import model_fn

    clock = Clock()

    class ClockHook(tf.estimator.SessionRunHook):
        """Says when a step ends."""

        def after_run(self, run_context: Any, run_values: Any) -> None:
            """Ticks."""
            clock.tick()

    def input_fn(params: dict[str, Any]) -> Any:
        batches = INPUTS.train(params)
        return batches.take(1).cache().repeat() if repeats else batches

    with tempfile.TemporaryDirectory(prefix="bench") as folder, watched(clock):
        last = WARM_UP_STEPS + steps + 1
        given = {"runconfig.model_dir": folder, "runconfig.save_checkpoints_steps": last}
        params = load_params(config_path(MODEL), given)
        make_estimator(model_fn, params, True).train(input_fn, [ClockHook()], max_steps=last)
    return {part: times[WARM_UP_STEPS:] for part, times in clock.times.items()}


def run(steps: int = STEPS) -> None:
    """Measures, and prints medians."""
    import tensorflow as tf

    quiet_logging(tf.compat.v1)
    tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.WARN)
    found, whole = (measure(steps, repeats) for repeats in (True, False))
    shown = {part: 1e3 * median(times) for part, times in found.items()}
    least, own = (1e3 * pick for pick in (min(found[STEP]), median(whole[STEP])))
    print(f"{MODEL} without kernels, medians of {steps} steps, one batch again and again:")
    rows = (
        ("Python around instructions", shown[INSTRUCTIONS]),
        ("other parts of the wafer's step", shown[WAFER] - shown[INSTRUCTIONS]),
        ("TensorFlow's session", shown[SESSION] - shown[WAFER]),
        ("hooks and tf.estimator's loop", shown[STEP] - shown[SESSION]),
        ("a step", shown[STEP]),
    )
    for name, milliseconds in rows:
        print(f"  {name:30}{milliseconds:8.3f} ms")
    print(f"  {'the fastest step':30}{least:8.3f} ms")
    print(
        f"a step with the input that {MODEL} names: {own:.3f} ms: input {own - shown[STEP]:.3f} ms"
    )
