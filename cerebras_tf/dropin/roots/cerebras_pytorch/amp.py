"""Mixed precision: matrix products in bfloat16, which needs no loss scale."""

from __future__ import annotations

from typing import Any

from cerebras.pytorch.amp import (
    GradScaler,
    _amp_state,
    autocast,
    get_half_dtype,
    optimizer_step,
    precision,
    set_half_dtype,
    use_bfloat16,
)

__all__ = [
    "GradScaler",
    "_amp_state",
    "autocast",
    "get_half_dtype",
    "get_init_params",
    "load_state_dict",
    "optimizer_step",
    "precision",
    "set_half_dtype",
    "state_dict",
    "use_bfloat16",
]


def get_init_params() -> dict[str, Any]:
    """Settings of a GradScaler that clips gradients; none, because the optimizer clips them."""
    return {}


def state_dict() -> dict[str, Any]:
    """The state of loss scaling; empty."""
    return {}


def load_state_dict(state: dict[str, Any]) -> None:
    """Accepts the state of loss scaling of a checkpoint."""
