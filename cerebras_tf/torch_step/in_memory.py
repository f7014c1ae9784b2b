"""Trains a PyTorch model whose weights and optimizer state are stored in memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Optional

import torch

from cerebras_tf.capture_torch.capture import GRADIENT_OF, LOSS
from cerebras_tf.capture_torch.export import Batch
from cerebras_tf.capture_torch.lowering import array_of
from cerebras_tf.compiler.pipeline import Options
from cerebras_tf.frontend.model_step import ModelStep
from cerebras_tf.ir import Array
from cerebras_tf.memoryx.store import MemoryStore, reading, write
from cerebras_tf.torch_step.front_end import TorchModel


class InMemoryTraining:
    """Steps of a captured model on this computer.

    Weights are copied from the model when this is made, and back by `copy_back`.

    Args:
        model: the captured model.
        gradients: names of parameters whose gradients each step returns.
        options: how to compile.

    Example:
        model = TorchModel(module, batches[0], torch.optim.AdamW(module.parameters()))
        training = InMemoryTraining(model)
        for batch in batches:
            print(training.step(batch))
        training.copy_back()
    """

    def __init__(
        self, model: TorchModel, gradients: Iterable[str] = (), options: Optional[Options] = None
    ) -> None:
        self.model = model
        self.store = MemoryStore(model.specs.values())
        slots = model.update.slots if model.update is not None else {}
        for name in model.specs:
            tensor = model.exported.tensors.get(name)
            write(self.store, name, slots[name] if tensor is None else array_of(tensor))
        self._step = ModelStep(model, self.store, options or Options())
        self._step.want([LOSS, *map(GRADIENT_OF.format, gradients)])

    def step(self, batch: Batch) -> float:
        """Runs a step and returns the loss."""
        features = {name: array_of(tensor) for name, tensor in batch.items()}
        if self.model.update is not None:
            features.update(self.model.update.rates())
        self._step.run(features)
        return float(self._step.results[LOSS])

    def gradient(self, name: str) -> Array:
        """A gradient of the last step."""
        return self._step.results[GRADIENT_OF.format(name)]

    @property
    def program(self) -> Any:
        """The program that ran last."""
        return self._step.program

    def copy_back(self) -> None:
        """Copies parameters and buffers to the model."""
        for name in self.model.exported.specs:
            tensor = self.model.exported.tensors[name]
            with reading(self.store, name) as array, torch.no_grad():
                found = torch.from_numpy(array.copy())
                bits = tensor.dtype == torch.bfloat16
                tensor.copy_(found.view(torch.bfloat16) if bits else found)
