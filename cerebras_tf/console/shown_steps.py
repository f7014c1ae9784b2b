"""Selects the steps of a run that TensorBoard and the console show, and writes their summaries.

tf.estimator's own hook counts from the first step of each session and omits the last step.
"""

from __future__ import annotations

from typing import Any, Optional

import tensorflow as tf

from cerebras_tf.tf_compat.internals import training_util


class ShownSteps:
    """The first step of a run, multiples of a number, and the last step if it is known.

    Args:
        last_step: global step at which training ends; None if unknown.
        steps: steps to train from the start, an alternative to `last_step`.

    Attributes:
        start: the global step before the first step.
        last: the last step; None if unknown.
    """

    def __init__(
        self, every_n_steps: int, last_step: Optional[int] = None, steps: Optional[int] = None
    ) -> None:
        self.start = 0
        self.last = last_step
        self._every_n_steps = every_n_steps
        self._steps = steps

    def begin(self, step: int) -> None:
        """Sets the global step that a run starts from."""
        self.start = step
        if self._steps is not None:
            self.last = step + self._steps

    def __contains__(self, step: object) -> bool:
        if not isinstance(step, int) or step <= self.start:
            return False
        return step in (self.start + 1, self.last) or step % self._every_n_steps == 0


class SummaryHook(tf.estimator.SessionRunHook):
    """Writes the summaries of the steps that are shown.

    Args:
        scaffold: has the summary operation, once it is finalized.
    """

    def __init__(self, scaffold: Any, output_dir: str, shown: ShownSteps) -> None:
        self._scaffold = scaffold
        self._output_dir = output_dir
        self._shown = shown
        self._step = 0
        self._asked = False

    def begin(self) -> None:
        """Opens the event file shared with TensorFlow's hooks."""
        self._writer = tf.compat.v1.summary.FileWriterCache.get(self._output_dir)
        self._global_step = training_util._get_or_create_global_step_read()

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Records the start, so that TensorBoard drops later steps of a lost session."""
        self._step = int(session.run(self._global_step))
        self._shown.begin(self._step)
        started = tf.compat.v1.SessionLog(status=tf.compat.v1.SessionLog.START)
        self._writer.add_session_log(started, self._step + 1)

    def before_run(self, run_context: Any) -> Any:
        """Fetches the summaries if the next step is shown."""
        fetches = {"step": self._global_step}
        self._asked = self._step + 1 in self._shown and self._scaffold.summary_op is not None
        if self._asked:
            fetches["summary"] = self._scaffold.summary_op
        return tf.estimator.SessionRunArgs(fetches)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Writes the summaries, unless the run made no step.

        The step fetched along with a run may be the one before or after its update, so it is read
        again wherever that matters.
        """
        before, self._step = self._step, int(run_values.results["step"])
        if self._asked or any(self._step + late in self._shown for late in (1, 2)):
            self._step = int(run_context.session.run(self._global_step))
        if self._asked and self._step > before:
            found = run_values.results["summary"]
            for summary in found if isinstance(found, list) else [found]:
                self._writer.add_summary(summary, self._step)

    def end(self, session: Any) -> None:
        """Flushes the event file."""
        self._writer.flush()
