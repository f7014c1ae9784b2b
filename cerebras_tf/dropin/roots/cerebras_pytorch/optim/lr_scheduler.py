"""Learning rate schedules of the original software.

They are names only: the zoo's scheduler, which `Optimizer.set_main_lr_scheduler` gets, has the
formula and is evaluated on the host.
"""

from __future__ import annotations

from typing import Any

_NAMES = (
    *("Constant", "CosineAnnealing", "CosineAnnealingWarmRestarts", "CosineDecay", "CyclicLR"),
    *("Exponential", "InverseExponentialTimeDecay", "InverseSquareRootDecay", "Lambda"),
    *("MultiStep", "Multiplicative", "OneCycleLR", "Polynomial", "Step"),
)


class Schedule:
    """A schedule, with the arguments that it was made with."""

    def __init__(self, optimizer: Any, *arguments: Any, **options: Any) -> None:
        self.arguments, self.options = arguments, options


for _name in _NAMES:
    globals()[_name] = type(_name, (Schedule,), {"__doc__": Schedule.__doc__})
