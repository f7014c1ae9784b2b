"""The context of one call of an estimator's method: what is true only while that call lasts.

A suspended `predict` and an evaluation in the midst of training have contexts of their own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Optional

import numpy as np

from cerebras_tf.estimator.hooks import EvaluationStopHook
from cerebras_tf.estimator.model_graph import ModelGraph
from cerebras_tf.memoryx.store import reading

_stop_of_training: ContextVar[Optional[EvaluationStopHook]] = ContextVar("stop", default=None)


@dataclass
class Call:
    """One call of train, evaluate, predict, compile or export.

    Attributes:
        use_cs: whether models go to the wafer.
        steps: steps to train from here, where that was given.
        last_step: global step at which training ends, where that was given.
        examples: examples in a batch, where shapes say so.
        tokens: tokens in a batch, where shapes say so.
        model: the model on the wafer, once model_fn was called; None on the host.
    """

    use_cs: bool
    steps: Optional[int] = None
    last_step: Optional[int] = None
    examples: Optional[int] = None
    tokens: Optional[int] = None
    model: Optional[ModelGraph] = None

    def memory_high_water(self) -> float:
        """The most bytes of variables, activations and scratch memory taken at once so far."""
        return 0.0 if self.model is None else float(self.model.step.session.peak_bytes)

    def trainable_weights(self) -> Iterator[tuple[str, np.ndarray]]:
        """(name, content) of the weights on the wafer; nothing where the model is on the host."""
        if self.model is not None:
            store = self.model.store
            for name, spec in store.specs.items():
                if spec.trainable:
                    with reading(store, name) as array:
                        yield name, array


@contextlib.contextmanager
def training(stop: EvaluationStopHook) -> Iterator[None]:
    """Within: evaluations are in the midst of a training, and end with it by `stop`."""
    token = _stop_of_training.set(stop)
    try:
        yield
    finally:
        _stop_of_training.reset(token)


def hooks_of_training_around() -> list[EvaluationStopHook]:
    """Hooks for an evaluation: that of the training in whose midst it is, if any."""
    stop = _stop_of_training.get()
    return [] if stop is None else [stop]
