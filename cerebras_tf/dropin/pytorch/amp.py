"""Mixed precision: matrix products in bfloat16, which needs no loss scale."""

from __future__ import annotations

import contextlib
from typing import Any, Optional, Union

import torch

from cerebras_tf.errors import ConfigError


class _AmpState:
    half_dtype = torch.float16


_amp_state = _AmpState()
_HALF = {"float16": torch.float16, "bfloat16": torch.bfloat16, "cbfloat16": torch.bfloat16}


def set_half_dtype(value: Union[str, torch.dtype]) -> torch.dtype:
    """Sets the type of 16 bits: bfloat16 rounds the operands of matrix products, float16 nothing.

    Args:
        value: torch.float16, torch.bfloat16 or a name; cbfloat16 is computed as bfloat16.

    Raises:
        ConfigError: it is another type.
    """
    name = str(value).removeprefix("torch.")
    if name not in _HALF:
        raise ConfigError(f"half dtype: must be one of {', '.join(_HALF)}. Received: {value}.")
    _amp_state.half_dtype = _HALF[name]
    return _amp_state.half_dtype


def get_half_dtype() -> torch.dtype:
    """The type of 16 bits."""
    return _amp_state.half_dtype


def use_bfloat16(value: bool = True) -> None:
    """Computes matrix products in bfloat16."""
    set_half_dtype(torch.bfloat16 if value else torch.float16)


def precision() -> str:
    """The precision of matrix products on the wafer."""
    return "bfloat16" if _amp_state.half_dtype == torch.bfloat16 else "float32"


def autocast() -> contextlib.AbstractContextManager[Any]:
    """Within: mixed precision. On the wafer it is that of `set_half_dtype` everywhere."""
    from cerebras.pytorch.platform import current_backend

    found = current_backend()
    if found is None or found.is_csx or not found.mixed_precision:
        return contextlib.nullcontext()
    return torch.autocast("cpu", torch.bfloat16)


class GradScaler:
    """Accepts the settings of loss scaling, and scales by 1.

    Gradients are computed in float32 or bfloat16, which have the range that float16 lacks, so the
    result is that of an exact scale.
    """

    def __init__(self, loss_scale: Any = None, **settings: Any) -> None:
        self.loss_scale = loss_scale

    def __call__(self, loss: Any) -> Any:
        return loss

    def scale(self, loss: Any) -> Any:
        """Returns the loss."""
        return loss

    def get_scale(self) -> float:
        """The scale, 1."""
        return 1.0

    def unscale_(self, optimizer: Any) -> None:
        """Does nothing; gradients are not scaled."""

    def step(self, optimizer: Any, *args: Any, **keys: Any) -> None:
        """Makes the optimizer's step."""
        optimizer.step(*args, **keys)

    def update(self) -> None:
        """Does nothing; the scale is constant."""

    def state_dict(self) -> dict[str, Any]:
        """The scaler's state; empty."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Accepts the state of a checkpoint."""


def optimizer_step(
    loss: torch.Tensor,
    optimizer: Any,
    grad_scaler: Optional[GradScaler] = None,
    max_gradient_norm: Optional[float] = None,
    max_gradient_value: Optional[float] = None,
) -> None:
    """Makes a training step: zero_grad, backward, clipping and the optimizer's step.

    Args:
        max_gradient_norm: largest norm of all gradients; None: not clipped.
        max_gradient_value: largest absolute value of a gradient; None: not clipped.

    Raises:
        ConfigError: both limits are given, or one is not positive.
    """
    limits = [each for each in (max_gradient_norm, max_gradient_value) if each is not None]
    if len(limits) > 1 or any(limit <= 0 for limit in limits):
        raise ConfigError(
            "optimizer_step: max_gradient_norm or max_gradient_value must be positive, and only "
            f"one given. Received: {max_gradient_norm} and {max_gradient_value}."
        )
    optimizer.zero_grad()
    (grad_scaler or GradScaler()).scale(loss).backward()
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if max_gradient_norm is not None:
        torch.nn.utils.clip_grad_norm_(parameters, max_gradient_norm)
    if max_gradient_value is not None:
        torch.nn.utils.clip_grad_value_(parameters, max_gradient_value)
    optimizer.step()
