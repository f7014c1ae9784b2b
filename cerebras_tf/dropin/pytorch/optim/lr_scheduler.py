"""Learning rate schedules of the original software, evaluated on the host in every step."""

from __future__ import annotations

import abc
import bisect
import math
from collections.abc import Callable, Sequence
from typing import Any, Optional

import torch


class LRScheduler(torch.optim.lr_scheduler.LRScheduler, abc.ABC):
    """A schedule that is a function of the step.

    A group of parameters with the key `adjust_learning_rate` has the rate times that number.

    Args:
        optimizer: its learning rates are set.
        total_iters: steps until the rate stays constant; None for none.
        last_epoch: steps made before; -1 for none.
        disable_lr_steps_reset: whether the schedule goes on counting from the first step when it
            is a part of a SequentialLR.
    """

    def __init__(
        self,
        optimizer: Any,
        total_iters: Optional[int] = None,
        last_epoch: int = -1,
        disable_lr_steps_reset: bool = False,
    ) -> None:
        self.total_iters = total_iters
        self.disable_lr_steps_reset = disable_lr_steps_reset
        super().__init__(optimizer, last_epoch)

    @abc.abstractmethod
    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""

    def get_lr(self) -> list[float]:
        """The learning rates of the groups in the next step."""
        rate = self.rate(max(self.last_epoch, 0))
        groups = self.optimizer.param_groups
        return [rate * group.get("adjust_learning_rate", 1.0) for group in groups]

    def state_dict(self) -> dict[str, Any]:
        """The number of steps."""
        return {"last_epoch": self.last_epoch, "_step_count": self._step_count}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continues after a number of steps, and sets the optimizer's learning rates."""
        self.last_epoch = state_dict["last_epoch"]
        self._step_count = state_dict.get("_step_count", self.last_epoch + 1)
        self._last_lr = self.get_lr()
        for group, rate in zip(self.optimizer.param_groups, self._last_lr):
            group["lr"] = rate


class ConstantLR(LRScheduler):
    """A constant rate."""

    def __init__(
        self, optimizer: Any, learning_rate: float, total_iters: Optional[int] = None, **keys: Any
    ) -> None:
        self.learning_rate = self.initial_learning_rate = learning_rate
        super().__init__(optimizer, total_iters, **keys)

    def rate(self, step: int) -> float:
        """The rate."""
        return self.learning_rate


class PolynomialLR(LRScheduler):
    """end + (initial - end) (1 - step / total)^power, then the end rate.

    Args:
        cycle: whether the total grows to a multiple that the step does not exceed.
    """

    def __init__(
        self,
        optimizer: Any,
        initial_learning_rate: float,
        end_learning_rate: float,
        total_iters: int,
        power: float = 1.0,
        cycle: bool = False,
        **keys: Any,
    ) -> None:
        self.initial_learning_rate = initial_learning_rate
        self.end_learning_rate, self.power, self.cycle = end_learning_rate, power, cycle
        super().__init__(optimizer, total_iters, **keys)

    def rate(self, step: int) -> float:
        """See the class."""
        total = self.total_iters or 1
        if step >= total:
            return self.end_learning_rate
        cycles = math.ceil((step + 1) / total) if self.cycle else 1
        difference = self.initial_learning_rate - self.end_learning_rate
        return float((1 - step / (total * cycles)) ** self.power * difference) + (
            self.end_learning_rate
        )


class LinearLR(PolynomialLR):
    """A straight line from the initial to the end rate."""

    def __init__(
        self,
        optimizer: Any,
        initial_learning_rate: float,
        end_learning_rate: float,
        total_iters: int,
        cycle: bool = False,
        **keys: Any,
    ) -> None:
        ends = (initial_learning_rate, end_learning_rate)
        super().__init__(optimizer, *ends, total_iters, 1.0, cycle, **keys)


class ExponentialLR(LRScheduler):
    """initial * decay_rate^(step / total), with whole exponents if `staircase` is set."""

    def __init__(
        self,
        optimizer: Any,
        initial_learning_rate: float,
        total_iters: int,
        decay_rate: float,
        staircase: bool = False,
        **keys: Any,
    ) -> None:
        self.initial_learning_rate = initial_learning_rate
        self.decay_rate, self.staircase = decay_rate, staircase
        super().__init__(optimizer, total_iters, **keys)

    def rate(self, step: int) -> float:
        """See the class."""
        power = step / (self.total_iters or 1)
        power = math.floor(power) if self.staircase else power
        return float(self.initial_learning_rate * self.decay_rate**power)


class InverseExponentialTimeDecayLR(LRScheduler):
    """initial / (1 + decay_rate step^exponent / total)."""

    def __init__(
        self,
        optimizer: Any,
        initial_learning_rate: float,
        step_exponent: float,
        total_iters: int,
        decay_rate: float,
        staircase: bool = False,
        **keys: Any,
    ) -> None:
        self.initial_learning_rate, self.step_exponent = initial_learning_rate, step_exponent
        self.decay_rate, self.staircase = decay_rate, staircase
        super().__init__(optimizer, total_iters, **keys)

    def rate(self, step: int) -> float:
        """See the class."""
        ratio = float(step) ** self.step_exponent / (self.total_iters or 1)
        ratio = math.floor(ratio) if self.staircase else ratio
        return float(self.initial_learning_rate / (1 + ratio * self.decay_rate))


class InverseSquareRootDecayLR(LRScheduler):
    """initial * scale / sqrt(max(step, warmup_steps))."""

    def __init__(
        self,
        optimizer: Any,
        initial_learning_rate: float = 1.0,
        scale: float = 1.0,
        warmup_steps: float = 1.0,
        **keys: Any,
    ) -> None:
        self.initial_learning_rate = initial_learning_rate
        self.scale, self.warmup_steps = scale, warmup_steps
        super().__init__(optimizer, **keys)

    def rate(self, step: int) -> float:
        """See the class."""
        return self.initial_learning_rate * self.scale / math.sqrt(max(step, self.warmup_steps))


class CosineDecayLR(LRScheduler):
    """Half a cosine from the initial to the end rate."""

    def __init__(
        self,
        optimizer: Any,
        initial_learning_rate: float,
        end_learning_rate: float,
        total_iters: int,
        **keys: Any,
    ) -> None:
        self.initial_learning_rate = initial_learning_rate
        self.end_learning_rate = end_learning_rate
        super().__init__(optimizer, total_iters, **keys)

    def rate(self, step: int) -> float:
        """See the class."""
        total = self.total_iters or 1
        ends = (self.initial_learning_rate, self.end_learning_rate)
        return _cosine(*ends, min(step, total) / total)


class MultiStepLR(LRScheduler):
    """The initial rate times `gamma` for every milestone that the step has reached."""

    def __init__(
        self,
        optimizer: Any,
        initial_learning_rate: float,
        gamma: float,
        milestones: Sequence[int],
        **keys: Any,
    ) -> None:
        self.initial_learning_rate = initial_learning_rate
        self.gamma, self.milestones = gamma, list(milestones)
        super().__init__(optimizer, **keys)

    def rate(self, step: int) -> float:
        """See the class."""
        count = sum(step >= milestone for milestone in self.milestones)
        return float(self.initial_learning_rate * self.gamma**count)


class StepLR(LRScheduler):
    """The initial rate times `gamma` for every `step_size` steps."""

    def __init__(
        self,
        optimizer: Any,
        initial_learning_rate: float,
        step_size: int,
        gamma: float,
        **keys: Any,
    ) -> None:
        self.initial_learning_rate = initial_learning_rate
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer, **keys)

    def rate(self, step: int) -> float:
        """See the class."""
        return float(self.initial_learning_rate * self.gamma ** (step // self.step_size))


class CosineAnnealingLR(LRScheduler):
    """A cosine between the initial rate and `eta_min`, of half-period `T_max`."""

    def __init__(
        self,
        optimizer: Any,
        initial_learning_rate: float,
        T_max: int,
        eta_min: float = 0.0,
        **keys: Any,
    ) -> None:
        self.initial_learning_rate = initial_learning_rate
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer, **keys)

    def rate(self, step: int) -> float:
        """See the class."""
        return _cosine(self.initial_learning_rate, self.eta_min, step / self.T_max)


class CosineAnnealingWarmRestarts(LRScheduler):
    """Half cosines from the initial rate to `eta_min`, each `T_mult` times as long as the last."""

    def __init__(
        self,
        optimizer: Any,
        initial_learning_rate: float,
        T_0: int,
        T_mult: int = 1,
        eta_min: float = 0.0,
        **keys: Any,
    ) -> None:
        self.initial_learning_rate = initial_learning_rate
        self.T_0, self.T_mult, self.eta_min = T_0, T_mult, eta_min
        super().__init__(optimizer, **keys)

    def rate(self, step: int) -> float:
        """See the class."""
        length = self.T_0
        while step >= length:
            step, length = step - length, length * self.T_mult
        return _cosine(self.initial_learning_rate, self.eta_min, step / length)


class LambdaLR(LRScheduler):
    """The initial rate times functions of the step, which `set_lr_lambda` returns."""

    def __init__(self, optimizer: Any, initial_learning_rate: float, **keys: Any) -> None:
        self.initial_learning_rate = initial_learning_rate
        super().__init__(optimizer, **keys)

    @abc.abstractmethod
    def set_lr_lambda(self) -> Sequence[Callable[[int], float]]:
        """The functions."""

    def rate(self, step: int) -> float:
        """See the class."""
        found = 1.0
        for function in self.set_lr_lambda():
            found *= self.initial_learning_rate * float(function(step))
        return found


class MultiplicativeLR(LRScheduler):
    """initial * coefficient^step."""

    def __init__(
        self, optimizer: Any, initial_learning_rate: float, coefficient: float, **keys: Any
    ) -> None:
        self.initial_learning_rate, self.coefficient = initial_learning_rate, coefficient
        super().__init__(optimizer, **keys)

    def rate(self, step: int) -> float:
        """See the class."""
        return float(self.initial_learning_rate * self.coefficient**step)


class CyclicLR(LRScheduler):
    """Triangles between `base_lr` and `max_lr` (arXiv:1506.01186).

    Args:
        mode: "triangular"; "triangular2" halves the height in each cycle; "exp_range" multiplies
            it by gamma^step.
    """

    def __init__(
        self,
        optimizer: Any,
        base_lr: float,
        max_lr: float,
        step_size_up: int = 2000,
        step_size_down: Optional[int] = None,
        mode: str = "triangular",
        gamma: float = 1.0,
        scale_mode: str = "cycle",
        **keys: Any,
    ) -> None:
        self.base_lr = self.initial_learning_rate = base_lr
        self.max_lr, self.mode, self.gamma = max_lr, mode, gamma
        self.step_size_up, self.step_size_down = step_size_up, step_size_down or step_size_up
        super().__init__(optimizer, **keys)

    def rate(self, step: int) -> float:
        """See the class."""
        size = self.step_size_up + self.step_size_down
        cycle, place = divmod(step / size, 1)
        up = self.step_size_up / size
        height = place / up if place <= up else (1 - place) / (1 - up)
        scale = {"triangular": 1.0, "triangular2": 0.5**cycle}.get(self.mode, self.gamma**step)
        return self.base_lr + height * (self.max_lr - self.base_lr) * scale


class OneCycleLR(LRScheduler):
    """One rise to `max_lr` and one fall (arXiv:1708.07120).

    Args:
        pct_start: share of the steps that rise.
        final_div_factor: the initial rate over the last one.
        three_phase: whether the fall stops at the initial rate before the last phase.
        anneal_strategy: "cos" or "linear".
    """

    def __init__(
        self,
        optimizer: Any,
        initial_learning_rate: float,
        max_lr: float,
        total_steps: int = 1000,
        pct_start: float = 0.3,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        anneal_strategy: str = "cos",
        **keys: Any,
    ) -> None:
        self.initial_learning_rate, self.max_lr = initial_learning_rate, max_lr
        self.anneal_strategy = anneal_strategy
        top, last = pct_start * total_steps - 1, total_steps - 1
        low = initial_learning_rate / final_div_factor
        self._points = [(0.0, initial_learning_rate), (top, max_lr)]
        if three_phase:
            self._points.append((2 * top, initial_learning_rate))
        self._points.append((last, low))
        super().__init__(optimizer, total_steps, **keys)

    def rate(self, step: int) -> float:
        """See the class."""
        pairs = list(zip(self._points, self._points[1:]))
        reached = [pair for pair in pairs[1:] if step > pair[0][0]]
        (start, low), (end, high) = reached[-1] if reached else pairs[0]
        place = (step - start) / (end - start)
        if self.anneal_strategy == "cos":
            return _cosine(low, high, place)
        return low + (high - low) * place


class SequentialLR(LRScheduler):
    """Schedules one after another.

    Args:
        milestones: the step at which each of them but the first begins.
    """

    def __init__(
        self,
        optimizer: Any,
        schedulers: Sequence[LRScheduler],
        milestones: Sequence[int],
        **keys: Any,
    ) -> None:
        self.schedulers, self.milestones = list(schedulers), list(milestones)
        super().__init__(optimizer, **keys)

    def rate(self, step: int) -> float:
        """See the class."""
        index = bisect.bisect_right(self.milestones, step)
        scheduler = self.schedulers[index]
        start = self.milestones[index - 1] if index else 0
        return scheduler.rate(step if scheduler.disable_lr_steps_reset else step - start)


class PiecewiseConstantLR(SequentialLR):
    """Constant rates.

    Args:
        milestones: the step at which each rate but the first begins.
    """

    def __init__(
        self,
        optimizer: Any,
        learning_rates: Sequence[float],
        milestones: Sequence[int],
        **keys: Any,
    ) -> None:
        parts = [ConstantLR(optimizer, rate) for rate in learning_rates]
        super().__init__(optimizer, parts, milestones, **keys)


class ChainedScheduler(LRScheduler):
    """The first schedule times the others, each over its initial rate."""

    def __init__(self, schedulers: Sequence[Any], **keys: Any) -> None:
        self.schedulers = list(schedulers)
        super().__init__(self.schedulers[0].optimizer, **keys)

    def rate(self, step: int) -> float:
        """See the class."""
        found = self.schedulers[0].rate(step)
        for each in self.schedulers[1:]:
            found *= each.rate(step) / each.initial_learning_rate
        return float(found)


class ScalePerParamLR(LRScheduler):
    """A schedule, times `adjust_learning_rate` of each group, which every schedule applies."""

    def __init__(self, optimizer: Any, scheduler: LRScheduler, **keys: Any) -> None:
        self.scheduler = scheduler
        super().__init__(optimizer, **keys)

    def rate(self, step: int) -> float:
        """See the class."""
        return self.scheduler.rate(step)


def _cosine(start: float, end: float, place: float) -> float:
    """Half a cosine from `start` at 0 to `end` at 1."""
    return end + (start - end) * (1 + math.cos(math.pi * place)) / 2
