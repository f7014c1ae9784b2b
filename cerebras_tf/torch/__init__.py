"""Trains PyTorch models on the emulated wafer: `cerebras_tf.torch.fit`."""

from __future__ import annotations

from cerebras_tf.torch.fit import FitResult, fit
from cerebras_tf.torch_step.front_end import TorchModel
from cerebras_tf.torch_step.lora import LoraSettings
from cerebras_tf.torch_step.pretrained import PretrainedModel
from cerebras_tf.torch_step.settings import TrainingSettings
from cerebras_tf.torch_step.training import TorchTraining

__all__ = [
    "FitResult",
    "LoraSettings",
    "PretrainedModel",
    "TorchModel",
    "TorchTraining",
    "TrainingSettings",
    "fit",
]
