"""Whether the estimator or model_fn accumulates the gradients of the batches of a step."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Optional

from cerebras_tf.errors import ConfigError


@dataclass
class Accumulation:
    """What accumulates gradients while a model_fn is called.

    Attributes:
        count: batches of a step that the estimator accumulates; 1 for none.
        wanted: batches of a step that the estimator was given for this process; 1 if it was given
            none, so that model_fn may accumulate any number.
        has_asked: whether model_fn called `accumulates_batches`.
    """

    count: int
    wanted: int = 1
    has_asked: bool = False


_current: ContextVar[Optional[Accumulation]] = ContextVar("accumulation", default=None)


@contextlib.contextmanager
def accumulating(count: int, wanted: int) -> Iterator[Accumulation]:
    """Within: a model_fn is called; see Accumulation."""
    found = Accumulation(count, wanted)
    token = _current.set(found)
    try:
        yield found
    finally:
        _current.reset(token)


def accumulates_batches(count: int) -> bool:
    """Whether the estimator accumulates the gradients of the `count` batches of a step.

    Call it in a model_fn that can accumulate gradients itself, with the number of batches that this
    process trains on for a step. If it returns False, model_fn must accumulate them. The estimator
    accumulates on the wafer in weight streaming mode, in one process.

    Raises:
        ConfigError: the estimator accumulates another number of batches.

    Example::

        count = 1 if accumulates_batches(params["accumulate"]) else params["accumulate"]
    """
    found = _current.get()
    if found is None:
        return count == 1
    found.has_asked = True
    if found.wanted not in (1, count):
        raise ConfigError(
            "batches_per_step: must be the number of batches that model_fn accumulates. Received: "
            f"{found.wanted} for the estimator, {count} in model_fn. Use the same number."
        )
    return found.count == count
