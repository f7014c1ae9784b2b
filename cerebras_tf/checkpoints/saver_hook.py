"""When training writes checkpoints: at the same steps, wherever it was stopped and went on."""

from __future__ import annotations

from typing import Any, Optional

import tensorflow as tf


class MultiplesTimer(tf.compat.v1.train.SecondOrStepTimer):
    """Goes off at multiples of a number of steps, whatever the step at which it begins.

    TensorFlow's goes off so many steps behind that: a run that was stopped between two checkpoints
    would write all later ones, and evaluate them, at other steps than one never stopped.

    Args:
      every_steps: the number.
    """

    def __init__(self, every_steps: int) -> None:
        self._every = every_steps
        self._since: Optional[int] = None
        super().__init__(every_steps=every_steps)

    def update_last_triggered_step(self, step: int) -> Any:
        """Notes that it went off, at first for the step at which it begins."""
        self._since = int(step) - int(step) % self._every
        return super().update_last_triggered_step(step)

    def should_trigger_for_step(self, step: int) -> bool:
        """Whether it is due at a step."""
        if self._since is None or step == self.last_triggered_step():
            return self._since is None
        return bool(step >= self._since + self._every)


class SaverHook(tf.compat.v1.train.CheckpointSaverHook):
    """TensorFlow's hook, at steps that do not depend on where a run begins.

    It reads the global step apart only where a checkpoint may be due. TensorFlow takes a run for up
    to 1,000,000 steps, and so reads it after every one; this takes it for as many as the largest
    run so far.

    Args:
      model_dir: folder of the checkpoints.
      save_steps: steps between two of them; None to count seconds.
      **given: what else TensorFlow's takes.
    """

    def __init__(self, model_dir: str, save_steps: Optional[int] = None, **given: Any) -> None:
        super().__init__(model_dir, save_steps=save_steps, **given)
        self._fetched: Optional[int] = None
        self._most = 1
        if save_steps is not None:
            self._timer = MultiplesTimer(save_steps)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Saves where a checkpoint is due."""
        before, self._fetched = self._fetched, int(run_values.results)
        if before is not None:
            self._most = max(self._most, self._fetched - before)
            # Private API of TF 2.15: public there is no way to say it.
            self._set_steps_per_run(self._most)
        super().after_run(run_context, run_values)
