"""Optimizers: PyTorch's with the original defaults, and those that PyTorch lacks."""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable
from typing import Any, Optional

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from cerebras.pytorch.platform import current_backend, keep_current
from cerebras_tf.errors import ConfigError, UnsupportedOpError


class Optimizer(torch.optim.Optimizer, abc.ABC):
    """An optimizer whose step in an iteration over an executor runs on the wafer.

    Args:
        args: of torch.optim.Optimizer: parameters and defaults.
        enable_global_step: accepted; a subclass has its own count of steps.

    Example:
        class Signs(cstorch.optim.Optimizer):
            def __init__(self, params, lr):
                super().__init__(params, {"lr": lr})

            @torch.no_grad()
            def step(self, closure=None):
                for group in self.param_groups:
                    for p in group["params"]:
                        if p.grad is not None:
                            p.sub_(group["lr"] * p.grad.sign())
    """

    def __init__(self, *args: Any, enable_global_step: bool = False, **keys: Any) -> None:
        super().__init__(*args, **keys)
        self.preinitialize()
        found = current_backend()
        if found is not None:
            keep_current(self, found)

    def __init_subclass__(cls, **keys: Any) -> None:
        super().__init_subclass__(**keys)
        if "step" in vars(cls):
            cls.step = _recorded(cls.step)

    def preinitialize(self) -> None:
        """Makes the state before the first step; by default the first step makes it."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Sets gradients to None; those of an iteration on the wafer are."""
        found = current_backend()
        if found is not None and found.is_recording:
            found.loop.zero_grad()
        else:
            super().zero_grad(set_to_none)


def _recorded(step: Callable[..., Any]) -> Callable[..., Any]:
    """A `step` that makes an iteration that is recorded a training step."""

    @functools.wraps(step)
    def wrapped(self: Any, closure: Optional[Callable[[], Any]] = None) -> Any:
        found = current_backend()
        if found is None or not found.is_recording:
            return step(self, closure)
        if closure is not None:
            raise ConfigError("optimizer.step: closure must be None. Received: a function.")
        found.loop.train(self)
        return None

    return wrapped


def _refuse(optimizer: torch.optim.Optimizer, args: Any, keys: Any) -> None:
    """Refuses the step of another optimizer in an iteration: it would change nothing."""
    found = current_backend()
    if found is not None and found.is_recording and not isinstance(optimizer, Optimizer):
        raise UnsupportedOpError(
            "optimizer: must be one of cerebras.pytorch.optim. Received: "
            f"{type(optimizer).__module__}.{type(optimizer).__name__}. Use "
            "cerebras.pytorch.optim, or derive from its Optimizer."
        )


register_optimizer_step_pre_hook(_refuse)


class _Torch(Optimizer):
    """One of PyTorch's own optimizers."""

    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """Makes a step."""
        return super().step(closure)


class _SmallEpsilon(_Torch):
    """One whose learning rate and `eps` have other defaults than in PyTorch."""

    def __init__(self, params: Any, lr: float = 1e-3, *, eps: float = 1e-6, **keys: Any) -> None:
        super().__init__(params, lr=lr, eps=eps, **keys)


class SGD(_Torch, torch.optim.SGD):
    """Stochastic gradient descent, with momentum and weight decay."""


class Adadelta(_Torch, torch.optim.Adadelta):
    """Adadelta."""


class Adagrad(_Torch, torch.optim.Adagrad):
    """Adagrad."""

    def __init__(self, params: Any, lr: float = 1e-2, *, eps: float = 1e-6, **keys: Any) -> None:
        super().__init__(params, lr=lr, eps=eps, **keys)


class Adamax(_SmallEpsilon, torch.optim.Adamax):
    """Adamax."""


class ASGD(_Torch, torch.optim.ASGD):
    """Averaged stochastic gradient descent."""


class NAdam(_Torch, torch.optim.NAdam):
    """Adam with Nesterov momentum."""


class RAdam(_SmallEpsilon, torch.optim.RAdam):
    """Rectified Adam."""


class RMSprop(_Torch, torch.optim.RMSprop):
    """RMSprop."""


class Rprop(_Torch, torch.optim.Rprop):
    """Resilient backpropagation."""

    def __init__(self, params: Any, lr: float = 1e-3, **keys: Any) -> None:
        super().__init__(params, lr=lr, **keys)


class _Own(Optimizer):
    """An optimizer that computes each parameter's update."""

    def preinitialize(self) -> None:
        """Makes the state before the first step."""
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter].update(self.first_state(group, parameter))

    def first_state(self, group: dict[str, Any], parameter: torch.Tensor) -> dict[str, Any]:
        """The state of a parameter before the first step."""
        zeros = torch.zeros_like(parameter, dtype=torch.float32, requires_grad=False)
        return {"exp_avg": zeros.clone(), "exp_avg_sq": zeros}

    @abc.abstractmethod
    def update(
        self, group: dict[str, Any], parameter: torch.Tensor, state: dict[str, torch.Tensor]
    ) -> None:
        """Changes a parameter that has a gradient, and its state."""

    @torch.no_grad()
    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """Makes a step."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    state = self.state[parameter]
                    if not state:
                        state.update(self.first_state(group, parameter))
                    self.update(group, parameter, state)
        return loss


def _average(
    state: dict[str, torch.Tensor], gradient: torch.Tensor, betas: tuple[float, float]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Updates the moving averages of the gradient and of its square; returns them."""
    first, second = state["exp_avg"], state["exp_avg_sq"]
    first.mul_(betas[0]).add_(gradient, alpha=1 - betas[0])
    second.mul_(betas[1]).addcmul_(gradient, gradient, value=1 - betas[1])
    return first, second


class AdamBase(_Own):
    """Adam (arXiv:1412.6980) with L2 regularization and decoupled weight decay (1711.05101).

    As in Algorithm 1 of the paper's second section, `eps` is added before the bias correction.

    Args:
        correct_bias: whether the moving averages are corrected for their first value, 0.
        amsgrad: whether the largest average of squares so far is used.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        l2_regularization_rate: float = 0.0,
        correct_bias: bool = True,
        amsgrad: bool = False,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "betas": tuple(betas),
                "eps": eps,
                "weight_decay": weight_decay,
                "l2_regularization_rate": l2_regularization_rate,
                "correct_bias": correct_bias,
                "amsgrad": amsgrad,
            },
        )

    def first_state(self, group: dict[str, Any], parameter: torch.Tensor) -> dict[str, Any]:
        """The moving averages, and the powers of the betas."""
        state = super().first_state(group, parameter)
        if group["amsgrad"]:
            state["max_exp_avg_sq"] = state["exp_avg_sq"].clone()
        if group["correct_bias"]:
            for index, beta in enumerate(group["betas"], start=1):
                state[f"beta{index}_power"] = torch.tensor(beta, dtype=torch.float32)
        return state

    def update(
        self, group: dict[str, Any], parameter: torch.Tensor, state: dict[str, torch.Tensor]
    ) -> None:
        """See the class."""
        gradient = parameter.grad
        assert gradient is not None
        if group["l2_regularization_rate"] > 0:
            gradient = gradient.add(parameter, alpha=group["l2_regularization_rate"])
        first, second = _average(state, gradient, group["betas"])
        if group["amsgrad"]:
            second = state["max_exp_avg_sq"].copy_(torch.maximum(state["max_exp_avg_sq"], second))
        change = first / second.sqrt().add(group["eps"])
        if group["correct_bias"]:
            one, two = state["beta1_power"], state["beta2_power"]
            change = change * (torch.sqrt(1.0 - two) / (1.0 - one))
            one.mul_(group["betas"][0])
            two.mul_(group["betas"][1])
        if group["weight_decay"] > 0:
            change = change.add(parameter, alpha=group["weight_decay"])
        parameter.sub_(change * group["lr"])


class Adam(AdamBase):
    """Adam; `weight_decay` is L2 regularization, which is added to the gradient."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad=amsgrad)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds parameters."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        group["l2_regularization_rate"] += group["weight_decay"]
        group["weight_decay"] = 0.0


class AdamW(AdamBase):
    """Adam with decoupled weight decay."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        correct_bias: bool = True,
        amsgrad: bool = False,
    ) -> None:
        super().__init__(
            params, lr, betas, eps, weight_decay, correct_bias=correct_bias, amsgrad=amsgrad
        )


class Lamb(_Own):
    """Lamb (arXiv:1904.00962).

    Args:
        adam: whether the ratio of norms is 1.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        adam: bool = False,
    ) -> None:
        defaults = {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**defaults, "adam": adam})

    def update(
        self, group: dict[str, Any], parameter: torch.Tensor, state: dict[str, torch.Tensor]
    ) -> None:
        """See the class."""
        assert parameter.grad is not None
        first, second = _average(state, parameter.grad, group["betas"])
        change = first / second.sqrt().add(group["eps"])
        if group["weight_decay"] != 0:
            change = change.add(parameter, alpha=group["weight_decay"])
        if not group["adam"]:
            weights = parameter.pow(2).sum().sqrt().clamp(0, 10)
            norm = change.pow(2).sum().sqrt()
            ratio = torch.where((weights > 0) & (norm > 0), weights / norm, torch.ones(()))
            change = change * ratio
        parameter.sub_(change * group["lr"])


class Lion(_Own):
    """Lion (arXiv:2302.06675)."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": tuple(betas), "weight_decay": weight_decay})

    def first_state(self, group: dict[str, Any], parameter: torch.Tensor) -> dict[str, Any]:
        """The moving average of the gradient."""
        return {"exp_avg": super().first_state(group, parameter)["exp_avg"]}

    def update(
        self, group: dict[str, Any], parameter: torch.Tensor, state: dict[str, torch.Tensor]
    ) -> None:
        """See the class."""
        assert parameter.grad is not None
        (one, two), average = group["betas"], state["exp_avg"]
        if group["weight_decay"] != 0:
            parameter.mul_(1 - group["lr"] * group["weight_decay"])
        direction = average.mul(one).add(parameter.grad, alpha=1 - one).sign()
        parameter.sub_(direction * group["lr"])
        average.mul_(two).add_(parameter.grad, alpha=1 - two)


class Adafactor(_Own):
    """Adafactor (arXiv:1804.04235), without a first moment and without relative steps."""

    def __init__(
        self,
        params: Any,
        lr: float,
        eps: tuple[float, float] = (1e-30, 1e-3),
        clip_threshold: float = 1.0,
        decay_rate: float = -0.8,
        beta1: Optional[float] = None,
        weight_decay: float = 0.0,
        scale_parameter: bool = True,
        relative_step: bool = False,
        warmup_init: bool = False,
    ) -> None:
        if beta1 is not None or relative_step or warmup_init:
            raise ConfigError(
                "Adafactor: beta1 must be None, relative_step and warmup_init False. Received: "
                f"{beta1}, {relative_step} and {warmup_init}. Set a learning rate."
            )
        defaults = {"lr": lr, "eps": tuple(eps), "clip_threshold": clip_threshold}
        defaults.update(decay_rate=decay_rate, weight_decay=weight_decay)
        super().__init__(params, {**defaults, "scale_parameter": scale_parameter})

    def first_state(self, group: dict[str, Any], parameter: torch.Tensor) -> dict[str, Any]:
        """Averages of squares by row and column, and the number of steps."""
        shape, step = tuple(parameter.shape), torch.zeros(())
        if len(shape) < 2:
            return {"exp_avg_sq": torch.zeros(shape), "step": step}
        rows, columns = torch.zeros(shape[:-1]), torch.zeros((*shape[:-2], shape[-1]))
        return {"exp_avg_sq_row": rows, "exp_avg_sq_col": columns, "step": step}

    def update(
        self, group: dict[str, Any], parameter: torch.Tensor, state: dict[str, torch.Tensor]
    ) -> None:
        """See the class."""
        gradient = parameter.grad
        assert gradient is not None
        state["step"].add_(1.0)
        beta = 1.0 - state["step"].pow(group["decay_rate"])
        squares = gradient.square() + group["eps"][0]
        if "exp_avg_sq_row" in state:
            row, column = state["exp_avg_sq_row"], state["exp_avg_sq_col"]
            row.mul_(beta).add_(squares.mean(-1) * (1.0 - beta))
            column.mul_(beta).add_(squares.mean(-2) * (1.0 - beta))
            scale = (row / row.mean(-1, keepdim=True)).rsqrt().unsqueeze(-1)
            change = scale * column.rsqrt().unsqueeze(-2) * gradient
        else:
            average = state["exp_avg_sq"].mul_(beta).add_(squares * (1.0 - beta))
            change = average.rsqrt() * gradient
        change = change / (_rms(change) / group["clip_threshold"]).clamp(min=1.0)
        rate = group["lr"]
        if group["scale_parameter"]:
            rate = rate * _rms(parameter).clamp(min=group["eps"][1])
        change = change * rate
        if group["weight_decay"] > 0:
            change = change + parameter * (group["weight_decay"] * rate)
        parameter.sub_(change)


def _rms(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.square().mean().sqrt()
