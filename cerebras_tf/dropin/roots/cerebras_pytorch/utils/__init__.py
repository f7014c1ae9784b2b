"""Functions on what models return."""

from __future__ import annotations

from typing import Any

import torch


def extract_loss(outputs: Any) -> Any:
    """The loss in what a model returns: a tensor, the first of several, or its `loss`."""
    if isinstance(outputs, torch.Tensor):
        return outputs
    return outputs[0] if isinstance(outputs, (list, tuple)) else outputs.loss
