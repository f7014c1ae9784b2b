"""A PyTorch model as a front end: what a program source asks for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Optional

import torch

from cerebras_tf.capture_torch.capture import GRADIENT_OF, capture_step
from cerebras_tf.capture_torch.digest import digest_of_graphs
from cerebras_tf.capture_torch.export import LOSS, Batch, ExportedModel, LossFunction
from cerebras_tf.capture_torch.update import TracedUpdate
from cerebras_tf.errors import ConfigError
from cerebras_tf.frontend.front_end import Feature
from cerebras_tf.frontend.program_cache import code_digest
from cerebras_tf.ir import StepGraph, TensorType, Variable


class TorchModel:
    """A model, its loss and its update; see frontend.front_end.FrontEnd.

    Args:
        module: the model, in the mode (train or eval) that is captured.
        example: a batch; tensors are keyword arguments of the model's forward.
        optimizer: updates the model; None for a model that is evaluated.
        loss: computes the loss; by default what the model returns, or the `loss` of it. If it
            returns a mapping, `loss` is the loss, and the other tensors are results of a step.
        update: what follows `loss.backward()`; see capture_torch.update.TracedUpdate.
        seed: of the random operations; by default that of torch.
        stored: see capture_torch.export.ExportedModel.
        open_axes: axes that differ from batch to batch; see capture_torch.export.ExportedModel.
        keeps_buffers: whether steps without an optimizer keep what the model changes in buffers.

    Attributes:
        gradients: names of the parameters whose gradients are results of a step.
        given_seed: the argument `seed`.
        rows: of a micro-batch that is a part of a batch; None if the number may differ.
    """

    global_step, has_fallback = "global_step", False
    gradients: Collection[str] = ()
    rows: Optional[int] = None

    def __init__(
        self,
        module: torch.nn.Module,
        example: Batch,
        optimizer: Optional[torch.optim.Optimizer] = None,
        loss: Optional[LossFunction] = None,
        update: Optional[Callable[[], Any]] = None,
        seed: Optional[int] = None,
        stored: Optional[Mapping[str, str]] = None,
        open_axes: Optional[Mapping[str, Sequence[int]]] = None,
        keeps_buffers: bool = False,
    ) -> None:
        self.keeps_buffers = keeps_buffers
        self.exported = ExportedModel(module, example, loss, open_axes, stored)
        self.loss: Optional[str] = LOSS if self.exported.has_loss else None
        self.update: Optional[TracedUpdate] = None
        if optimizer is not None:
            trained = {name: self.exported.tensors[name] for name in self.exported.trained}
            if not trained:
                raise ConfigError(
                    "loss: must depend on parameters with requires_grad=True. Received: a loss "
                    "that has no gradient. Remove .detach() and torch.no_grad(), or unfreeze "
                    "parameters."
                )
            self.update = TracedUpdate(module, optimizer, trained, update)
        self.given_seed = seed
        self._seed = (torch.initial_seed() if seed is None else seed) & (2**62 - 1)

    @property
    def features(self) -> list[Feature]:
        """Tensors of a batch, and the learning rates."""
        rates = self.update.rates() if self.update is not None else {}
        found = [Feature(name, "float64", ()) for name in rates]
        for name, (dtype, shape) in self.exported.features.items():
            if shape and self.rows is not None:
                shape = (self.rows, *shape[1:])
            found.append(Feature(name, dtype, shape, self.exported.open_sizes[name]))
        return found

    @property
    def trains(self) -> bool:
        """Whether steps update the model, or only its buffers."""
        return self.update is not None or self.keeps_buffers

    @property
    def results(self) -> dict[str, TensorType]:
        """The loss, outputs of the loss function, and gradients."""
        specs = self.exported.specs
        return {
            **({LOSS: TensorType("float32", ())} if self.exported.has_loss else {}),
            **{name: TensorType(*kind) for name, kind in self.exported.outputs.items()},
            **{GRADIENT_OF.format(name): specs[name].type for name in self.gradients},
        }

    @property
    def specs(self) -> dict[str, Variable]:
        """All variables: parameters, buffers and the optimizer's state."""
        slots = self.update.specs if self.update is not None else {}
        return {**self.exported.specs, **slots}

    def capture(
        self,
        types: Mapping[str, TensorType],
        results: Collection[str],
        updates: bool,
        fallback: bool = False,
    ) -> StepGraph:
        """Captures one step; see FrontEnd."""
        update = self.update if updates else None
        return capture_step(
            self.exported,
            update,
            types,
            results,
            self._seed,
            self.trains,
            update is not None or (updates and self.keeps_buffers),
        )

    def digest(self, results: Iterable[str], updates: bool) -> Optional[str]:
        """Hash of the graphs and of the names of their inputs; see FrontEnd."""
        update = self.update if updates else None
        graphs = [self.exported.graph, *([] if update is None else [update.graph])]
        texts = [code_digest("capture_torch"), f"trains={self.trains} updates={updates}"]
        texts += self.exported.inputs()
        texts += [*map(str, self.specs.values()), *self.exported.outputs]
        return digest_of_graphs(graphs, self.exported.constants(), texts)

    def seed(self) -> int:
        """Seed of the random operations."""
        return self._seed

    def restore_seed(self, seed: int) -> None:
        """Sets the seed to that of a checkpoint, before the first step."""
        self._seed = seed
