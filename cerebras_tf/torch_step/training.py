"""Trains a PyTorch model on the runtime."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Optional, Union

import torch

from cerebras_tf.capture_torch.capture import LOSS
from cerebras_tf.capture_torch.export import Batch
from cerebras_tf.capture_torch.lowering import array_of
from cerebras_tf.compiler.pipeline import Options
from cerebras_tf.errors import DataError
from cerebras_tf.frontend.micro_batches import MicroBatches
from cerebras_tf.frontend.model_step import ModelStep, RunSettings
from cerebras_tf.ir import Array
from cerebras_tf.kernels.compiled_threads import set_num_threads
from cerebras_tf.memoryx.store import MemoryStore, Store, reading, write
from cerebras_tf.torch_step.front_end import TorchModel
from cerebras_tf.torch_step.settings import TrainingSettings

# Returns the value of a variable, in the shape and storage dtype of the store.
Weight = Callable[[], Array]


class TorchTraining:
    """Steps of a captured model on the wafer.

    Weights and optimizer state are copied from the torch objects when this is made, and back by
    `copy_back`.

    Args:
        model: the captured model.
        settings: where variables are stored, precision, micro-batches, wafers.
        weights: values of parameters and buffers whose torch tensors have no data, by name. Each
            is called once, and released before the next.
        gradients: names of parameters whose gradients each step returns.

    Attributes:
        global_step: steps made.

    Example:
        model = TorchModel(module, batches[0], torch.optim.AdamW(module.parameters()))
        training = TorchTraining(model, TrainingSettings(precision="bfloat16"))
        for batch in batches:
            print(training.step(batch)["loss"])
        training.copy_back()
        training.close()
    """

    def __init__(
        self,
        model: TorchModel,
        settings: Optional[TrainingSettings] = None,
        weights: Optional[Mapping[str, Weight]] = None,
        gradients: Iterable[str] = (),
    ) -> None:
        self.model = model
        self.settings = settings = settings or TrainingSettings()
        self.global_step = 0
        set_num_threads(settings.num_threads)
        self.store: Store = MemoryStore(model.specs.values())
        model.gradients = tuple(gradients)
        self._step: Optional[ModelStep] = None
        self._batches = 0  # of a step
        _fill(self.store, model, weights or {})

    def step(self, batch: Union[Batch, Sequence[Batch]]) -> dict[str, Any]:
        """Runs a step.

        Args:
            batch: a batch; or several, whose gradients are averaged for one update. Every step
                must have the same number of batches.

        Returns:
            "loss", a float, averaged over the batches; and "gradient/NAME" of the gradients that
            were asked for.
        """
        batches = [batch] if isinstance(batch, Mapping) else list(batch)
        rates = self.model.update.rates() if self.model.update is not None else {}
        given = [{**_arrays(each), **rates} for each in batches]
        step = self._step_for(given)
        step.run(given[0] if len(given) == 1 else given, self.global_step)
        self.global_step += self.model.trains
        return {**step.results, LOSS: float(step.results[LOSS])}

    @property
    def program(self) -> Any:
        """The program that ran last; None before."""
        return None if self._step is None else self._step.program

    def copy_back(self) -> None:
        """Copies parameters, buffers and the optimizer's state to the torch objects."""
        for name in self.model.exported.specs:
            tensor = self.model.exported.tensors[name]
            with reading(self.store, name) as array, torch.no_grad():
                tensor.copy_(_tensor_of(array, tensor.dtype))

    def close(self) -> None:
        """Frees the variables; the training must not be used any more."""
        self._step = None
        self.store.close()

    def _step_for(self, given: Sequence[Mapping[str, Array]]) -> ModelStep:
        """The step for this number of batches."""
        if self._step is not None and len(given) != self._batches:
            raise DataError(
                f"batches: every step must have the same number of batches, {self._batches}. "
                f"Received: {len(given)}."
            )
        if self._step is None:
            self._batches = len(given)
            run = RunSettings(self.settings.wafer_memory_gb, self._micro_batches(given))
            self._step = ModelStep(self.model, self.store, self._options(), run)
            self._step.want(self.model.results)
        return self._step

    def _micro_batches(self, given: Sequence[Mapping[str, Array]]) -> Optional[MicroBatches]:
        names = {name: name for name in self.model.exported.features}
        if len(given) > 1:
            return MicroBatches(len(given), None, names)
        return None

    def _options(self) -> Options:
        settings = self.settings
        return Options(
            precision=settings.precision,
            keep_float32=settings.keep_float32,
            strip=settings.remove_padding,
            staging=settings.memoryx_dir is not None,
        )


def _fill(store: Store, model: TorchModel, weights: Mapping[str, Weight]) -> None:
    """Writes the first values of all variables."""
    slots = model.update.slots if model.update is not None else {}
    for name in model.specs:
        if name in weights:
            write(store, name, weights[name]())
        else:
            tensor = model.exported.tensors.get(name)
            write(store, name, slots[name] if tensor is None else array_of(tensor))


def _arrays(batch: Batch) -> dict[str, Array]:
    return {name: array_of(tensor) for name, tensor in batch.items()}


def _tensor_of(array: Array, dtype: torch.dtype) -> torch.Tensor:
    """A copy of a variable as a tensor."""
    found = torch.from_numpy(array.copy())
    return found.view(torch.bfloat16) if dtype == torch.bfloat16 else found
