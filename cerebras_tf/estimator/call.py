"""The context of one call of an estimator's method: what is true only while that call lasts.

A suspended `predict` and an evaluation in the midst of training have contexts of their own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Optional

from cerebras_tf.estimator.hooks import EvaluationStopHook
from cerebras_tf.estimator.model_graph import ModelGraph
from cerebras_tf.swarmx import job

_training: ContextVar[Optional[Call]] = ContextVar("training", default=None)


@dataclass
class Call:
    """One call of train, evaluate, predict, compile or export.

    Attributes:
        use_cs: whether models go to the wafer.
        steps: steps to train from here, where that was given.
        last_step: global step at which training ends, where that was given.
        runs: whether steps will be made; a call that only compiles leaves nothing behind.
        examples: examples in a batch, where shapes say so.
        tokens: tokens in a batch, where shapes say so.
        systems: systems whose batches a step takes, for predictions.
        micro_batches: batches of a step, one after the other on each of them, likewise.
        sparsifier: prunes weights of a training; None where all stay.
        model: the model on the wafer, once model_fn was called; None on the host.
        stop: in training, ends evaluations in the midst of it when training is told to end.
    """

    use_cs: bool
    steps: Optional[int] = None
    last_step: Optional[int] = None
    runs: bool = True
    examples: Optional[int] = None
    tokens: Optional[int] = None
    systems: int = 1
    micro_batches: int = 1
    sparsifier: Any = None
    model: Optional[ModelGraph] = None
    stop: Optional[EvaluationStopHook] = None

    def close(self) -> None:
        """Gives back what the call holds on the wafer."""
        if self.model is not None:
            self.model.store.close()

    def memory_high_water(self) -> float:
        """The most bytes of variables, activations and scratch memory taken at once so far."""
        return 0.0 if self.model is None else float(self.model.step.session.peak_bytes)

    def not_finite_weights(self) -> list[str]:
        """Names of weights on the wafer that hold NaN or infinity; none of a model on the host."""
        if self.model is None:
            return []
        return self.model.store.not_finite(self.weights())

    def weights(self) -> list[str]:
        """Names of the variables that are trained, of a model on the wafer."""
        assert self.model is not None
        return [name for name, spec in self.model.store.specs.items() if spec.trainable]

    def in_step(self, count: Optional[int]) -> Optional[int]:
        """What a step of training has of something, on all systems, given what a batch has."""
        return None if count is None else count * self.micro_batches * self.systems

    @property
    def batches_here(self) -> int:
        """Batches that a step of training computes in this process, one after the other."""
        return self.micro_batches * max(self.systems // job.wafers(), 1)


@contextlib.contextmanager
def training(call: Call) -> Iterator[None]:
    """Within: other calls are in the midst of this training."""
    token = _training.set(call)
    try:
        yield
    finally:
        _training.reset(token)


def enclosing_training() -> Optional[Call]:
    """The training in whose midst a call is made, if any."""
    return _training.get()


def enclosing_training_hooks() -> list[EvaluationStopHook]:
    """Hooks for an evaluation: that of the training in whose midst it is, if any."""
    around = enclosing_training()
    return [around.stop] if around is not None and around.stop is not None else []
