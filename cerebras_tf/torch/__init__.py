"""Trains PyTorch models on the emulated wafer: `cerebras_tf.torch.fit`."""

from __future__ import annotations

from cerebras_tf.torch.fit import FitResult, fit
from cerebras_tf.torch_step.front_end import TorchModel
from cerebras_tf.torch_step.settings import TrainingSettings
from cerebras_tf.torch_step.training import TorchTraining

__all__ = ["FitResult", "TorchModel", "TorchTraining", "TrainingSettings", "fit"]
