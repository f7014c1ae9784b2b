"""What a run of `fit` shows and logs: console, scalars, profile, traffic."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Optional

from cerebras_tf.console.event_file import EventFile
from cerebras_tf.console.loggers import Logger, scalar_loggers
from cerebras_tf.console.profile import StepProfile
from cerebras_tf.console.progress import ProgressLines, StepWindow, TrainingClock
from cerebras_tf.console.shown_steps import ShownSteps
from cerebras_tf.console.traffic import TrafficMeter, of_files, of_wafers
from cerebras_tf.swarmx import job
from cerebras_tf.torch.options import FitOptions
from cerebras_tf.torch_step.training import TorchTraining

_LOSS, _EVAL = "loss", "eval/loss"


class RunReports(contextlib.ExitStack):
    """Reports of a run; of several processes, the first one's. A context around training.

    Args:
        steps: global step at which training ends.
        clock: of rates; it stops during evaluations.

    Attributes:
        losses: the losses that were shown, by step.
    """

    def __init__(
        self, options: FitOptions, training: TorchTraining, steps: int, clock: TrainingClock
    ) -> None:
        super().__init__()
        self.losses: dict[int, float] = {}
        self._training, self._clock = training, clock
        self._shown = ShownSteps(options.log_every, steps)
        self._lines = ProgressLines(self._shown, clock=clock)
        self._window, self._tokens = StepWindow(clock), 0
        self._loggers: list[Logger] = []
        self._meters: list[TrafficMeter] = []
        self._profile: Optional[StepProfile] = None
        folder = options.model_dir
        if not job.is_first():
            return
        if folder is not None:
            config = {"steps": steps, "precision": options.precision, "num_csx": options.num_csx}
            others = scalar_loggers(options.loggers, folder, folder, "train", config)
            self._loggers = [EventFile(folder), *others]
        profiler = training.reports.profiler
        if profiler is not None and options.profile is not None and folder is not None:
            self._profile = StepProfile(profiler, options.profile, folder)
        store, swarm, every = training.store, training.swarm, options.log_every
        if options.memoryx_dir is not None:
            self._meters.append(TrafficMeter(every, lambda: store.io_stats, of_files, clock))
        if swarm.size > 1:
            self._meters.append(TrafficMeter(every, lambda: swarm.traffic, of_wafers, clock))

    def begin(self, start: int, about: str) -> None:
        """Logs lines about the model, and the first step."""
        self._shown.begin(start)
        if not job.is_first():
            return
        self.callback(self._lines.close)
        self._lines.begin(start, about)
        for logger in self._loggers:
            self.callback(logger.close)
            logger.restart(start + 1)

    def after_step(self, step: int, loss: float, rates: Sequence[float], tokens: int) -> None:
        """Shows and logs a step, if it is due.

        Args:
            rates: learning rates of the step.
            tokens: of the step on all wafers; 0 if unknown.
        """
        self._tokens += tokens
        if step in self._shown:
            self.losses[step] = loss
        if not job.is_first():
            return
        self._lines.update(step, loss, tokens)
        scalars: dict[str, float] = {}
        for meter in self._meters:
            scalars.update(meter.after_step(step) or {})
        if self._profile is not None:
            self._profile.after_step()
        if step in self._shown:
            scalars.update(self._scalars(step, loss, rates))
        if scalars:
            self._log(step, scalars)

    def _scalars(self, step: int, loss: float, rates: Sequence[float]) -> dict[str, float]:
        names = [f"learning_rate/{index}" for index in range(len(rates))]
        found = {_LOSS: loss, **dict(zip(names if len(rates) > 1 else ["learning_rate"], rates))}
        window = self._window.close(step)
        if not self._window.is_open:
            self._window.open(step)
        elif window is not None:
            steps, seconds = window
            found["global_step/sec"] = steps / seconds
            if self._tokens:
                found["tokens_per_sec"] = self._tokens / seconds
        self._tokens = 0
        step_runner = self._training.model_step
        if step_runner is not None:
            found["wafer/memory_high_water_bytes"] = float(step_runner.session.peak_bytes)
        return found

    def evaluated(self, step: int, loss: float) -> None:
        """Logs an evaluation."""
        if job.is_first():
            self._training.reports.log(f"evaluation at step {step}: loss = {loss:.9g}")
            self._log(step, {_EVAL: loss})

    def end(self, step: int) -> None:
        """Logs how long training took, and traffic."""
        if not job.is_first():
            return
        self._lines.end(step)
        for meter in self._meters:
            meter.end()
        if self._profile is not None:
            self._profile.end()

    def _log(self, step: int, scalars: dict[str, float]) -> None:
        for logger in self._loggers:
            logger.log(step, scalars)
