"""Makes micro-batches of what a TensorFlow input function returns.

They are parts of a batch (`micro_batches`), or several batches make one step (`batches_per_step`).
model_fn is called with the whole batch of an unknown size, or with the first batch of the step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Optional

import tensorflow as tf

from cerebras_tf.capture.order import all_before
from cerebras_tf.environment import EXECUTION_MODE
from cerebras_tf.errors import CerebrasError, ConfigError, UnsupportedOpError
from cerebras_tf.frontend.front_end import Feature
from cerebras_tf.frontend.micro_batches import MicroBatches, refuse_values
from cerebras_tf.swarmx import job
from cerebras_tf.tf_session.structures import leaves, map_fetches
from cerebras_tf.tf_session.synchronous_batches import StepBatches


@dataclass
class SplitBatch(MicroBatches):
    """Micro-batches of a TensorFlow input function.

    Attributes:
        whole: by name of a tensor that model_fn is given, that of the whole batch, or those of all
            batches of a step.
        operations: names of the operations that take the batches of a step from the input.
        option: what asks for micro-batches, for errors.
    """

    whole: dict[str, list[Any]] = field(default_factory=dict)
    operations: list[str] = field(default_factory=list)
    option: str = "micro_batches"

    def fed(
        self, tensors: Sequence[Any], checks: Iterable[Any], on_wafer: Callable[[Any], bool]
    ) -> list[Any]:
        """The tensors that the session feeds in place of those of a micro-batch: those of the whole
        batch, or those of the first batch, of the second and so on.

        Args:
            tensors: tensors of a micro-batch, or independent of the batch.
            checks: operations that the session runs with the step.
            on_wafer: whether an operation runs on the wafer, for every micro-batch.

        Raises:
            UnsupportedOpError: the session computes a tensor from the micro-batch.
        """
        graph = tf.compat.v1.get_default_graph()
        parts = {graph.get_tensor_by_name(name).op for name in self.whole}
        for tensor in tensors:
            if tensor.name not in self.whole and parts.intersection(all_before([tensor.op])):
                raise UnsupportedOpError(
                    f"{self.option}: the wafer must read features exactly as the input function "
                    f"returns them. Received: {tensor.name}, which TensorFlow computes from them. "
                    f"Compute it in the input function, or remove {self.option}."
                )
        for op in checks if self.rows is None else ():
            if parts.intersection(all_before([op], lambda _: (), on_wafer)):
                tf.compat.v1.logging.warning(
                    "%s: '%s' (%s) in model_fn sees only the first micro-batch of every step; in "
                    "the input function it would see all",
                    self.option,
                    op.name,
                    op.type,
                )
        found = [self.whole.get(tensor.name, [tensor] * self.count) for tensor in tensors]
        if self.rows is not None:
            return [tensors[0] for tensors in found]
        return [tensors[number] for number in range(self.count) for tensors in found]

    @contextlib.contextmanager
    def explaining(self) -> Iterator[None]:
        """Within: model_fn is called; its errors may come from the unknown number of rows."""
        try:
            yield
        except CerebrasError:
            raise
        except (TypeError, ValueError) as error:
            if self.rows is None or "None" not in str(error):
                raise
            raise UnsupportedOpError(
                "micro_batches: model_fn must take features with an unknown number of rows, of "
                f"shape (None, ...). Received: {type(error).__name__}: {error} If the number of "
                "rows is the reason, use tf.shape(x)[0] for x.shape[0], or remove micro_batches."
            ) from error

    def sized(self, features: Sequence[Feature]) -> list[Feature]:
        """The features of a model, with the number of rows that model_fn does not see."""
        return [
            replace(feature, shape=(self.rows, *feature.shape[1:]))
            if self.rows is not None and feature.name in self.whole and feature.shape
            else feature
            for feature in features
        ]

    def dropped(self, operation: str) -> int:
        """The batches of an incomplete step that are dropped where data end.

        Args:
            operation: name of the operation that found no batch.
        """
        return self.operations.index(operation) if operation in self.operations else 0

    def refuse_first(self, name: str, before: Iterable[Any]) -> None:
        """Raises UnsupportedOpError if the session would compute a fetch from a micro-batch.

        Args:
            name: of the fetch.
            before: operations that it depends on.
        """
        parts = {tensor.partition(":")[0] for tensor in self.whole if self.rows is None}
        if any(op.name in parts for op in before):
            refuse_values([name])


def batches_for(dataset: Any, count: int, synchronous: bool) -> StepBatches:
    """A dataset that gives all batches of a step.

    Args:
        dataset: what an input function returns.
        count: number of batches of a step.
        synchronous: see StepBatches.

    Raises:
        ConfigError: it is no dataset.
    """
    if not isinstance(dataset, tf.data.Dataset):
        raise ConfigError(
            f"input_fn: with {count} batches per step (batches_per_step, num_csx), must return a "
            f"tf.data.Dataset. Received: {type(dataset).__name__}. Return the dataset, or train "
            "with one batch per step."
        )
    return StepBatches(dataset, count, synchronous)


def batches_of_step(taken: StepBatches) -> SplitBatch:
    """Micro-batches that are the batches of a step, in the default graph."""
    found = SplitBatch(len(taken.batches), None, option="batches_per_step")
    found.operations = taken.operations
    flat = [tf.nest.flatten(batch, expand_composites=True) for batch in taken.batches]
    for first, *others in zip(*flat):
        found.whole[first.name], found.batched[first.name] = [first, *others], first.name
    return found


def split_batch(
    config: Any, on_wafer: bool, mode: str, features: Any, labels: Any
) -> tuple[Optional[SplitBatch], Any, Any]:
    """Splits a batch, in the default graph.

    Args:
        config: the run configuration.
        on_wafer: whether the model runs on the wafer; the host runs whole batches.
        mode: a tf.estimator.ModeKeys; only training uses micro-batches.
        features: as the input function returns them.
        labels: likewise.

    Returns:
        How the batch is split, or None; features and labels for model_fn, whose number of rows is
        unknown.

    Raises:
        ConfigError: they cannot be split.
    """
    count = config.micro_batches
    if not on_wafer or mode != tf.estimator.ModeKeys.TRAIN or count == 1:
        return None, features, labels
    rows = _rows_of((features, labels), count)
    batch = SplitBatch(count, rows // count)

    def first(tensor: Any) -> Any:
        if not tensor.shape.rank:
            return tensor
        # model_fn must not depend on the number of rows. What the session computes sees all rows.
        shape = [None, *tensor.shape[1:]]
        part = tf.compat.v1.placeholder_with_default(tensor, shape, "micro_batch")
        batch.whole[part.name], batch.batched[part.name] = [tensor], tensor.name
        return part

    return batch, *map_fetches((features, labels), first)


def _rows_of(batch: Any, count: int) -> int:
    """The number of rows of every tensor of a batch."""
    if job.wafers() > 1 or EXECUTION_MODE.get() != "weight_streaming":
        raise ConfigError(
            "micro_batches: must be used with one wafer in weight streaming mode. Received: "
            f"{job.wafers()} in {EXECUTION_MODE.get()} mode. Remove micro_batches."
        )
    names = {
        id(item): repr(key)
        for part in batch
        if isinstance(part, dict)
        for key, item in part.items()
    }
    rows: Optional[int] = None
    for tensor in leaves(batch):
        name = names.get(id(tensor), getattr(tensor, "name", type(tensor).__name__))
        shape = tensor.shape if isinstance(tensor, tf.Tensor) else None
        if shape is not None and shape.rank == 0:
            continue
        first = None if shape is None or shape.rank is None else shape[0]
        if first is None or (rows is not None and first != rows):
            raise ConfigError(
                "micro_batches: every feature must be a tensor with a static first dimension, the "
                f"batch. Received: {name}, {shape} with a batch size of {rows}. Use batch(..., "
                "drop_remainder=True), or remove micro_batches."
            )
        rows = first
    if rows is None or rows % count:
        raise ConfigError(
            f"micro_batches: must divide the batch size. Received: {count}, batch size {rows}. Set "
            "a divisor."
        )
    return rows
