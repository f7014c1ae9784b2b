"""Trains PyTorch models on the emulated wafer: `cerebras_tf.torch.fit`."""

from __future__ import annotations

from cerebras_tf.torch.fit import FitResult, fit

__all__ = ["FitResult", "fit"]
