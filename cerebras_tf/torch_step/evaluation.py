"""Evaluates a model on the variables of a training."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Optional

import numpy as np

from cerebras_tf.capture_torch.capture import LOSS
from cerebras_tf.capture_torch.export import Batch
from cerebras_tf.errors import ConfigError, UnsupportedOpError
from cerebras_tf.frontend.model_step import ModelStep, RunSettings
from cerebras_tf.torch_step.batch_form import arrays_of_batch
from cerebras_tf.torch_step.front_end import TorchModel
from cerebras_tf.torch_step.training import TorchTraining, compiler_options


class TorchEvaluation:
    """The loss of batches, with the training's current weights, which are not changed.

    Args:
        training: the training.
        model: the same module, captured in eval mode and without an optimizer.

    Raises:
        UnsupportedOpError: it reads a buffer that the training does not have.
    """

    def __init__(self, training: TorchTraining, model: TorchModel) -> None:
        missing = sorted(model.specs.keys() - training.store.specs.keys())
        if missing:
            raise UnsupportedOpError(
                "evaluation: the model must read the variables of the training. Received: "
                f"{missing[0]}. Register it as a persistent buffer."
            )
        model.loss = None  # every wafer returns its own
        self._training, self._model, self._swarm = training, model, training.swarm
        self._step: Optional[ModelStep] = None

    def loss(self, batches: Iterable[Batch]) -> float:
        """The mean loss over batches, weighted by their rows.

        Of several processes, each evaluates every N-th batch.

        Raises:
            ConfigError: there are no batches.
        """
        self._training.fill()
        total = rows = 0.0
        group: list[Batch] = []
        for batch in batches:
            group.append(batch)
            if len(group) == self._swarm.size:
                total, rows = total + self._add(group), rows + sum(map(_rows, group))
                group = []
        if group:
            total, rows = total + self._add(group), rows + sum(map(_rows, group))
        if not rows:
            raise ConfigError(
                "eval_loader: must have at least one batch. Received: none. Add data, or remove it."
            )
        return total / rows

    def close(self) -> None:
        """Frees its memory; that of the training stays."""
        if self._step is not None:
            self._step.close()
        self._step = None

    def _step_now(self) -> ModelStep:
        """What runs the batches; made when variables have their owners."""
        if self._step is None:
            training = self._training
            run = RunSettings(
                swarm=training.swarm,
                phase=training.reports.phase,
                log=training.reports.log,
                wafer=training.wafer,
            )
            owners = None if training.program is None else training.program.owners
            options = replace(compiler_options(training.settings, training.wafer), owners=owners)
            self._step = ModelStep(self._model, training.store, options, run)
            self._step.want([LOSS])
        return self._step

    def _add(self, group: list[Batch]) -> float:
        """The sum of the losses of one batch per process, times their rows."""
        rank = self._swarm.rank
        mine = group[min(rank, len(group) - 1)]
        features = arrays_of_batch(self._model.exported, mine)
        step = self._step_now()
        step.run(features, self._training.global_step)
        own = float(step.results[LOSS]) * _rows(mine) if rank < len(group) else 0.0
        return float(self._swarm.gather(np.array(own)).sum())


def _rows(batch: Batch) -> int:
    """The rows of a batch: the size of the first axis of its first tensor that has axes."""
    return next((tensor.shape[0] for tensor in batch.values() if tensor.ndim), 1)
