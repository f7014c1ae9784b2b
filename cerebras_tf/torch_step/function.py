"""Runs further functions of a model on the variables of a training."""

from __future__ import annotations

import torch

from cerebras_tf.capture_torch.export import Batch
from cerebras_tf.frontend.model_step import ModelStep, RunSettings
from cerebras_tf.torch_step.batch_form import arrays_of_batch
from cerebras_tf.torch_step.front_end import TorchModel
from cerebras_tf.torch_step.training import TorchTraining, compiler_options


class TorchFunction:
    """Outputs of batches, with the training's current weights, which are not changed.

    Args:
        training: holds the variables.
        model: a captured function of the same module, without an optimizer.

    Example:
        logits = TorchFunction(training, TorchModel(module, batch, loss=outputs))
        print(logits(batch)["logits"])
    """

    def __init__(self, training: TorchTraining, model: TorchModel) -> None:
        reports = training.reports
        run = RunSettings(phase=reports.phase, log=reports.log, wafer=training.wafer)
        self._training, self._model = training, model
        options = compiler_options(training.settings, training.wafer)
        self._step = ModelStep(model, training.store, options, run)
        self._step.want(model.results)

    def __call__(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Runs the function; returns its outputs by name."""
        self._training.fill()
        features = arrays_of_batch(self._model.exported, batch)
        self._step.run(features, self._training.global_step)
        return {name: torch.from_numpy(array) for name, array in self._step.results.items()}
