"""Data loading, logs and what models return."""

from __future__ import annotations

from cerebras_pytorch.utils import data, utils

from cerebras.pytorch.utils import CSConfig, extract_loss, nest, tensorboard, tracker

__all__ = ["CSConfig", "data", "extract_loss", "nest", "tensorboard", "tracker", "utils"]
