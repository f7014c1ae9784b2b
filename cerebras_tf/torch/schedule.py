"""The scheduler of a run: what is accepted, and its state in checkpoints."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.optim import lr_scheduler

from cerebras_tf.errors import ConfigError
from cerebras_tf.torch_step.plain_state import to_json

# Parts of a state that follow from the optimizer, which is compared by itself.
_OF_OPTIMIZER = ("base_lrs", "_last_lr", "last_epoch", "_step_count")
_SHOWN = 80  # characters of a value


class Schedule:
    """A scheduler, None for constant learning rates.

    Args:
        scheduler: of torch.optim.lr_scheduler; its `step()` has no arguments and changes only
            learning rates.

    Raises:
        ConfigError: it is another object, or one of another optimizer.
    """

    def __init__(self, scheduler: Any, optimizer: torch.optim.Optimizer) -> None:
        if scheduler is not None:
            _check(scheduler, optimizer)
        self._scheduler, self._optimizer = scheduler, optimizer
        self._first = self._now()

    def _now(self) -> Any:
        return None if self._scheduler is None else copy.deepcopy(self._scheduler.state_dict())

    @property
    def _kind(self) -> str:
        return "None" if self._scheduler is None else type(self._scheduler).__name__

    def step(self) -> None:
        """Sets the learning rates of the next step."""
        if self._scheduler is not None:
            self._scheduler.step()

    def state(self) -> dict[str, Any]:
        """What `restore` needs."""
        kind = None if self._scheduler is None else self._kind
        return {"scheduler": self._now(), "scheduler_class": kind, "scheduler_first": self._first}

    def restore(self, state: Mapping[str, Any], newest: Path) -> list[str]:
        """Continues from a checkpoint; returns lines about what differs from it.

        Raises:
            ConfigError: the checkpoint is of a run with another class of scheduler.
        """
        saved = state["scheduler"]
        # Older checkpoints do not have the class.
        known = None if self._scheduler is None else self._kind
        kind = state.get("scheduler_class", known)
        wanted = "None" if saved is None else kind or "a scheduler"
        if (saved is None) != (self._scheduler is None) or saved is not None and kind != self._kind:
            raise ConfigError(
                f"scheduler: must be that of the run that wrote {newest}, {wanted}. Received: "
                f"{self._kind}. Use the same scheduler, or another model_dir."
            )
        if saved is None:
            return []
        first = state.get("scheduler_first")
        lines = [] if first is None else list(_differences(self._first, first))
        self._first = self._first if first is None else first
        self._scheduler.load_state_dict(saved)
        return lines

    def apply_functions(self) -> list[str]:
        """Sets the learning rates that the functions of a LambdaLR give; they are in no checkpoint.

        Returns:
            Lines about rates that differ from those of the checkpoint.
        """
        found = self._scheduler
        if not isinstance(found, lr_scheduler.LambdaLR):
            return []
        lines = []
        groups = self._optimizer.param_groups
        for index, (group, base) in enumerate(zip(groups, found.base_lrs)):
            rate = base * found.lr_lambdas[index](found.last_epoch)
            if rate != group["lr"]:
                lines.append(
                    f"scheduler: the learning rate of group {index} is {rate:g} in this call, "
                    f"{float(group['lr']):g} in the checkpoint; this call's is used"
                )
                group["lr"] = rate
        return lines


def _check(scheduler: Any, optimizer: torch.optim.Optimizer) -> None:
    kind, plateau = lr_scheduler.LRScheduler, lr_scheduler.ReduceLROnPlateau
    if not isinstance(scheduler, kind) or isinstance(scheduler, plateau):
        raise ConfigError(
            "scheduler: must be a torch.optim.lr_scheduler whose step() has no arguments. "
            f"Received: {type(scheduler).__name__}. Use another."
        )
    if scheduler.optimizer is not optimizer:
        raise ConfigError(
            "scheduler: must be made for the optimizer of this call. Received: "
            f"{type(scheduler).__name__} of another one."
        )
    for each in _parts(scheduler):
        if getattr(each, "cycle_momentum", False):
            raise ConfigError(
                "scheduler: must change only learning rates. Received: "
                f"{type(each).__name__} with cycle_momentum=True. Make the optimizer and the "
                "scheduler again with cycle_momentum=False."
            )


def _parts(scheduler: Any) -> Iterator[Any]:
    """A scheduler, and those that it consists of."""
    yield scheduler
    for each in getattr(scheduler, "_schedulers", ()):
        yield from _parts(each)


def _differences(own: Any, saved: Any) -> Iterator[str]:
    """Lines about settings that differ, of states before the first step."""
    mine, theirs = (dict(_flat(to_json(each, "scheduler"))) for each in (own, saved))
    for name in sorted(mine.keys() | theirs.keys()):
        values = [str(each.get(name))[:_SHOWN] for each in (mine, theirs)]
        if mine.get(name) != theirs.get(name) and name.rpartition("/")[2] not in _OF_OPTIMIZER:
            yield (
                f"scheduler: {name} is {values[0]} in this call, {values[1]} in the checkpoint; "
                "the checkpoint's is used"
            )


def _flat(state: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The values of nested objects and lists of objects, by path."""
    items = state.items() if isinstance(state, dict) else enumerate(state)
    for key, value in items:
        name = f"{prefix}{key}"
        if isinstance(value, dict) or isinstance(value, list) and name.endswith("_schedulers"):
            yield from _flat(value, f"{name}/")
        else:
            yield name, value
