"""Names the tensors of a loader's batches, which may be dicts, tuples or nested."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from cerebras_tf.capture_torch.export import ExportedModel, check_batch
from cerebras_tf.capture_torch.lowering import array_of
from cerebras_tf.errors import DataError
from cerebras_tf.ir import Array, TensorType


class BatchForm:
    """The structure of a loader's batches.

    Args:
        example: a batch: a tensor, or dicts, lists and tuples of tensors.

    Raises:
        DataError: a batch contains anything else.
    """

    def __init__(self, example: Any) -> None:
        self._example = example
        self._names = list(named_tensors(example))

    def tensors(self, batch: Any) -> dict[str, torch.Tensor]:
        """The tensors of a batch by name: keys and positions, joined by "/"."""
        found = named_tensors(batch)
        if list(found) != self._names:
            raise DataError(
                f"batch: must have the tensors of the first batch, {', '.join(self._names)}. "
                f"Received: {', '.join(found)}. Correct the collate function."
            )
        return found

    def batch(self, tensors: Mapping[str, torch.Tensor]) -> Any:
        """The batch that has these tensors."""
        found = iter(tensors[name] for name in self._names)
        return _filled(self._example, found)


def arrays_of_batch(model: ExportedModel, batch: Any, micro_batches: int = 1) -> dict[str, Array]:
    """The arrays of a batch of a model.

    Args:
        micro_batches: number of micro-batches that it is split into.

    Raises:
        DataError: it has other tensors than the model, or sizes that do not fit together.
    """
    check_batch(batch)
    if batch.keys() != model.features.keys():
        raise DataError(
            f"batch: must have the tensors {', '.join(model.features)}. Received: "
            f"{', '.join(map(str, batch)) or 'none'}."
        )
    arrays = {name: array_of(tensor) for name, tensor in batch.items()}
    for name, (_, shape) in model.features.items():
        found = arrays[name].shape
        if len(found) != len(shape) or any(a not in (None, b) for a, b in zip(shape, found)):
            raise DataError(
                f"batch: shape of {name} must be {list(shape)}, with None for any size. Received: "
                f"{list(found)}. Correct the batch."
            )
    model.symbols({name: TensorType(a.dtype.name, a.shape) for name, a in arrays.items()})
    shapes = {name: array.shape for name, array in arrays.items()}
    model.check_sizes({n: s and (s[0] // micro_batches, *s[1:]) for n, s in shapes.items()})
    return arrays


def named_tensors(batch: Any, prefix: str = "") -> dict[str, torch.Tensor]:
    """The tensors of nested dicts, lists and tuples, by path."""
    if isinstance(batch, torch.Tensor):
        if batch.device.type != "cpu":
            raise DataError(
                f"batch: tensors must be on the CPU. Received: {prefix or 'batch'} on "
                f"{batch.device}. Remove .to(device)."
            )
        return {prefix or "batch": batch}
    if isinstance(batch, np.ndarray):
        return {prefix or "batch": torch.as_tensor(batch)}
    if isinstance(batch, Mapping):
        items = [(str(key), item) for key, item in batch.items()]
    elif isinstance(batch, (list, tuple)):
        items = [(str(index), item) for index, item in enumerate(batch)]
    else:
        raise DataError(
            f"batch: must consist of tensors. Received: {type(batch).__name__} for "
            f"{prefix or 'the batch'}. Convert or remove it in the collate function of the loader."
        )
    found: dict[str, torch.Tensor] = {}
    for key, item in items:
        found.update(named_tensors(item, f"{prefix}/{key}" if prefix else key))
    return found


def _filled(example: Any, tensors: Any) -> Any:
    if isinstance(example, Mapping):
        return {key: _filled(item, tensors) for key, item in example.items()}
    if isinstance(example, (list, tuple)):
        items = [_filled(item, tensors) for item in example]
        is_named = hasattr(example, "_fields")
        return type(example)(*items) if is_named else type(example)(items)
    return next(tensors)
