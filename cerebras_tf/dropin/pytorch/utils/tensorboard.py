"""Logs to TensorBoard."""

from __future__ import annotations

from typing import Any


def SummaryWriter(*args: Any, base_step: int = 0, **keys: Any) -> Any:
    """A torch.utils.tensorboard.SummaryWriter.

    Args:
        base_step: the step that summaries of the first iteration have.
    """
    from torch.utils.tensorboard import SummaryWriter as Writer

    writer = Writer(*args, **keys)
    writer.base_step = base_step
    return writer
