"""Splits the batch of a TensorFlow input function into micro-batches.

model_fn is called with the first rows of a batch; the session feeds the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

import tensorflow as tf

from cerebras_tf.capture.order import all_before
from cerebras_tf.environment import EXECUTION_MODE
from cerebras_tf.errors import ConfigError, UnsupportedOpError
from cerebras_tf.frontend.micro_batches import MicroBatches, refuse_values
from cerebras_tf.swarmx import job
from cerebras_tf.tf_session.structures import leaves, map_fetches


@dataclass
class SplitBatch(MicroBatches):
    """Micro-batches of a TensorFlow batch.

    Attributes:
        whole: tensors of the whole batch, by name of the tensor that model_fn is given.
    """

    whole: dict[str, Any] = field(default_factory=dict)

    def fed(
        self, tensors: Sequence[Any], checks: Iterable[Any], on_wafer: Callable[[Any], bool]
    ) -> list[Any]:
        """The tensors that the session feeds in place of those of a micro-batch.

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
                    "micro_batches: features must reach the wafer as the input function returns "
                    f"them. Received: {tensor.name}, which TensorFlow computes from them. Compute "
                    "it in the input function, or leave micro_batches out."
                )
        for op in checks:
            if parts.intersection(all_before([op], lambda _: (), on_wafer)):
                tf.compat.v1.logging.warning(
                    "micro_batches: '%s' (%s) in model_fn sees only the first micro-batch of every "
                    "batch; in the input function it would see the whole batch",
                    op.name,
                    op.type,
                )
        return [self.whole.get(tensor.name, tensor) for tensor in tensors]

    def refuse_first(self, name: str, before: Iterable[Any]) -> None:
        """Raises UnsupportedOpError if the session would compute a fetch from a micro-batch.

        Args:
            name: of the fetch.
            before: operations that it depends on.
        """
        parts = {tensor.partition(":")[0] for tensor in self.whole}
        if any(op.name in parts for op in before):
            refuse_values([name])


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
        How the batch is split, or None; features and labels of the first micro-batch.

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
        part = tf.identity(tensor[: batch.rows], name="micro_batch")
        batch.whole[part.name], batch.batched[part.name] = tensor, tensor.name
        return part

    return batch, *map_fetches((features, labels), first)


def _rows_of(batch: Any, count: int) -> int:
    """The number of rows of every tensor of a batch."""
    if job.wafers() > 1 or EXECUTION_MODE.get() != "weight_streaming":
        raise ConfigError(
            "micro_batches: needs one wafer, in weight streaming mode. Received: "
            f"{job.wafers()} in {EXECUTION_MODE.get()} mode. Leave micro_batches out; each of "
            "several wafers takes a batch of its own."
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
                f"batch. Received: {name}, {shape}, next to {rows} rows. Use "
                "batch(..., drop_remainder=True), or leave micro_batches out."
            )
        rows = first
    if rows is None or rows % count:
        raise ConfigError(
            f"micro_batches: must divide the rows of a batch. Received: {count}, {rows} rows. "
            "Choose a divisor."
        )
    return rows
