"""Mixed precision: matrix products in bfloat16, which needs no loss scale."""

from __future__ import annotations

from typing import Any

import torch
from cerebras_pytorch.platform import env


class _AmpState:
    half_dtype = torch.float16


_amp_state = _AmpState()


def use_bfloat16(value: bool = True) -> None:
    """Computes matrix products in bfloat16."""
    _amp_state.half_dtype = torch.bfloat16 if value else torch.float16
    env().precision = "bfloat16" if value else "float32"


def get_init_params() -> dict[str, Any]:
    """Settings of a GradScaler that clips gradients; none, because the optimizer clips them."""
    return {}


def state_dict() -> dict[str, Any]:
    """The state of loss scaling; empty."""
    return {}


def load_state_dict(state: dict[str, Any]) -> None:
    """Accepts the state of loss scaling of a checkpoint."""


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

    def unscale_(self, optimizer: Any) -> None:
        """Does nothing; gradients are not scaled."""

    def step(self, optimizer: Any) -> None:
        """Makes the optimizer's step."""
        optimizer.step()

    def update(self) -> None:
        """Does nothing; the scale is constant."""

    def state_dict(self) -> dict[str, Any]:
        """The scaler's state; empty."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Accepts the state of a checkpoint."""
