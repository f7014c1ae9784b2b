"""Learning rate schedules of the original software.

Those of R1.x are names only: the zoo's scheduler, which `set_main_lr_scheduler` of the optimizer
gets, has the formula and is evaluated on the host. Those of release 2 are
cerebras.pytorch.optim.lr_scheduler.
"""

from __future__ import annotations

from typing import Any

from cerebras.pytorch.optim import lr_scheduler as _release_2
from cerebras.pytorch.optim.lr_scheduler import *  # noqa: F403

_NAMES = (
    *("Constant", "CosineAnnealing", "CosineAnnealingWarmRestarts", "CosineDecay", "CyclicLR"),
    *("Exponential", "InverseExponentialTimeDecay", "InverseSquareRootDecay", "Lambda"),
    *("MultiStep", "Multiplicative", "OneCycleLR", "Polynomial", "ScalePerParamLR", "Step"),
)


class Schedule:
    """A schedule, with the arguments that it was made with."""

    def __new__(cls, optimizer: Any, *arguments: Any, **options: Any) -> Any:
        """Makes it, or the schedule of release 2 for an optimizer of release 2."""
        kind = getattr(_release_2, cls.__name__, None)
        if kind is not None and not hasattr(optimizer, "set_main_lr_scheduler"):
            return kind(optimizer, *arguments, **options)
        return super().__new__(cls)

    def __init__(self, optimizer: Any, *arguments: Any, **options: Any) -> None:
        self.arguments, self.options = arguments, options


for _name in _NAMES:
    globals()[_name] = type(_name, (Schedule,), {"__doc__": Schedule.__doc__})
