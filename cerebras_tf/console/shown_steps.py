"""Selects the steps of a run that TensorBoard and the console show.

tf.estimator's own hook counts from the first step of each session and omits the last step.
"""

from __future__ import annotations

from typing import Optional


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
