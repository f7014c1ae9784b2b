"""The optimizer of a run of R1.x, and the optimizers of release 2."""

from __future__ import annotations

import bisect
from typing import Any, Optional

import torch
from cerebras_pytorch.optim import lr_scheduler
from cerebras_pytorch.platform import state

from cerebras.pytorch import optim as _release_2
from cerebras.pytorch.optim import Optimizer
from cerebras.pytorch.platform import keep_current

__all__ = [*_release_2.__all__, "lr_scheduler"]


class RegisteredOptimizer:
    """A PyTorch optimizer whose steps are made on the wafer; it counts as an Optimizer.

    Attributes:
        gradient_clipper: is called with the model's parameters before each step; None for none.
    """

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self._optimizer = self.inner = inner
        self.gradient_clipper: Any = None
        self._scheduler: Any = None
        keep_current(inner, state().backend)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["inner"], name)

    def set_main_lr_scheduler(self, scheduler: Any) -> None:
        """Sets the schedule of learning rates; None keeps those of the groups.

        Args:
            scheduler: `lr_function` returns the rate for a step, which is its `last_epoch`. One
                that has `_schedulers` and `_milestones` chooses among them, as on the host.
        """
        self._scheduler = scheduler

    def zero_grad(self, set_to_none: Optional[bool] = True) -> None:
        """Sets gradients to None; those of a new iteration are."""
        if state().has_loop:
            state().loop.zero_grad()

    def step(self, closure: Any = None) -> None:
        """Makes the iteration a training step."""
        if self._scheduler is not None:
            with state().loop.paused():
                rate = _rate(self._scheduler)
            for group in self.inner.param_groups:
                group["lr"] = rate
        state().loop.train(self.inner, self.clip_and_step)

    def clip_and_step(self) -> None:
        """Clips the gradients and makes the optimizer's step."""
        model = state().model
        if self.gradient_clipper is not None and model is not None:
            self.gradient_clipper(model.parameters())
        self.inner.step()


Optimizer.register(RegisteredOptimizer)


def __getattr__(name: str) -> Any:
    return getattr(_release_2, name)


def _rate(scheduler: Any) -> float:
    """The learning rate that a zoo's scheduler has on the host."""
    step, parts = max(scheduler.last_epoch, 0), vars(scheduler).get("_schedulers")
    if parts is not None:
        milestones = vars(scheduler)["_milestones"]
        index = bisect.bisect_right(milestones, step)
        start = milestones[index - 1] if index else 0
        # R1.6 passes global steps to the parts, though the host counts a part's steps from 1.
        if index and _at(scheduler, start) != _at(parts[index], 0):
            return _at(parts[index], step - start + 1)
    return _at(scheduler, step)


def _at(scheduler: Any, step: int) -> float:
    return float(scheduler.lr_function(torch.tensor(step)))
