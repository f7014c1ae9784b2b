"""Data loading, logs and what models return."""

from __future__ import annotations

from typing import Any

import torch
from cerebras_appliance.CSConfig import CSConfig

from cerebras.pytorch.utils import data, nest, tensorboard, tracker

__all__ = ["CSConfig", "data", "extract_loss", "nest", "tensorboard", "tracker"]


def extract_loss(outputs: Any) -> Any:
    """The loss in what a model returns: a tensor, the first of several, or its `loss`."""
    if isinstance(outputs, torch.Tensor):
        return outputs
    return outputs[0] if isinstance(outputs, (list, tuple)) else outputs.loss
