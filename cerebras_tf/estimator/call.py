"""The context of one call of an estimator's method.

A suspended `predict` and an evaluation during training have contexts of their own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Optional

from cerebras_tf.console.progress import TrainingClock
from cerebras_tf.estimator.hooks import EvaluationStopHook
from cerebras_tf.estimator.model_graph import ModelGraph
from cerebras_tf.swarmx import job
from cerebras_tf.tf_session.synchronous_batches import StepBatches

_training: ContextVar[Optional[CallContext]] = ContextVar("training", default=None)


@dataclass
class CallContext:
    """One call of train, evaluate, predict, compile or export.

    Attributes:
        use_cs: whether models run on the wafer.
        is_open: False for an estimator's defaults, which are no call yet.
        steps: number of steps to train, if given.
        last_step: global step at which training ends, if given.
        runs: whether steps will run; a call that only compiles writes no variables.
        examples: examples in a batch, if shapes are known.
        tokens: tokens in a batch, if shapes are known.
        micro_batches: batches that each system computes sequentially for a step.
        accumulated: batches of a training step that the estimator accumulates; 1 for none.
        batches: the input of a training whose steps have several batches; None for one.
        inputs: what input_fn returned, in one process.
        sparsifier: prunes weights of a training; None for no pruning.
        model: the model on the wafer, after model_fn was called; None on the host.
        stop: ends evaluations during this training when training must stop.
        clock: of the rates of this training; it stops during evaluations.
    """

    use_cs: bool
    is_open: bool = False
    steps: Optional[int] = None
    last_step: Optional[int] = None
    runs: bool = True
    examples: Optional[int] = None
    tokens: Optional[int] = None
    systems: int = 1
    micro_batches: int = 1
    accumulated: int = 1
    batches: Optional[StepBatches] = None
    inputs: Any = None
    sparsifier: Any = None
    model: Optional[ModelGraph] = None
    stop: Optional[EvaluationStopHook] = None
    clock: TrainingClock = field(default_factory=TrainingClock)

    def close(self) -> None:
        """Frees the memory of the model on the wafer.

        Its graph, which refers to itself, stays until Python's garbage collector finds it.
        """
        if self.model is not None:
            self.model.step.close()
            self.model.store.close()

    def memory_high_water(self) -> float:
        """Peak bytes of variables, activations and scratch memory so far."""
        return 0.0 if self.model is None else float(self.model.step.session.peak_bytes)

    def not_finite_weights(self) -> list[str]:
        """Names of weights on the wafer that hold NaN or infinity; empty on the host."""
        if self.model is None:
            return []
        return self.model.store.not_finite(self.weights())

    def weights(self) -> list[str]:
        """Names of the variables that are trained, of a model on the wafer."""
        assert self.model is not None
        return [name for name, spec in self.model.store.specs.items() if spec.trainable]

    def per_step(self, count: Optional[int]) -> Optional[int]:
        """A count per training step on all systems, given the count per batch."""
        return None if count is None else count * self.micro_batches * self.systems

    @property
    def batches_here(self) -> int:
        """Batches that this process computes for a training step."""
        return self.micro_batches * max(self.systems // job.wafers(), 1)


@contextlib.contextmanager
def training(call: CallContext) -> Iterator[None]:
    """Within: calls are nested in this training."""
    token = _training.set(call)
    try:
        yield
    finally:
        _training.reset(token)


def enclosing_training() -> Optional[CallContext]:
    """The training that encloses the current call, if any."""
    return _training.get()


def pause_training() -> contextlib.AbstractContextManager[None]:
    """Within: the clock of the enclosing training, if any, stops."""
    outer = enclosing_training()
    return contextlib.nullcontext() if outer is None else outer.clock.paused()


def enclosing_training_hooks() -> list[EvaluationStopHook]:
    """Hooks that an evaluation gets from the enclosing training, if any."""
    outer = enclosing_training()
    return [outer.stop] if outer is not None and outer.stop is not None else []
