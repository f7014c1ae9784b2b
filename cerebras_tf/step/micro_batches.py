"""Runs a batch in equal parts, one after the other, where the whole does not fit.

model_fn is called for the first rows of a batch; the step is fed all of them, and runs the program
for as many rows once a part. What makes the parts one step stands in passes/split_micro_batches.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from cerebras_tf.capture.order import all_before
from cerebras_tf.environment import execution_mode_from_environment
from cerebras_tf.errors import ConfigError, DataError, UnsupportedOpError
from cerebras_tf.ir import Array, StepGraph, TensorType, Variable
from cerebras_tf.ir.program import Program
from cerebras_tf.memoryx.store import Store
from cerebras_tf.passes.split_micro_batches import (
    COUNTS,
    FIRST,
    LAST,
    MEAN,
    MIDDLE,
    SUM,
    UNKNOWN,
    VALUES,
    split_micro_batches,
)
from cerebras_tf.runtime.client import SessionClient
from cerebras_tf.runtime.protocol import Request
from cerebras_tf.swarmx import job
from cerebras_tf.tf_session.structures import leaves, map_fetches


@dataclass
class MicroBatches:
    """The parts of a batch.

    Attributes:
        count: how many there are.
        rows: of one of them.
        whole: tensors of the whole batch, by name of those that model_fn is given.
        fates: what becomes of the results of parts, by name.
        sums: types of the sums over wafers, by name.
        made: programs, with the part that each is for.
    """

    count: int
    rows: int
    whole: dict[str, Any]
    fates: dict[str, str] = field(default_factory=dict)
    sums: dict[str, TensorType] = field(default_factory=dict)
    made: list[tuple[Program, str]] = field(default_factory=list)

    def fed(
        self, tensors: Sequence[Any], checks: Iterable[Any], on_wafer: Callable[[Any], bool]
    ) -> list[Any]:
        """What the session feeds in place of tensors of the part that model_fn knows.

        Args:
            tensors: of that part, or beside the batch.
            checks: operations of the session that run with the step.
            on_wafer: whether an operation is computed there, of every part.

        Raises:
            UnsupportedOpError: the session makes something of that part that is fed.
        """
        parts = {tensor.op for tensor in map(_in_graph, self.whole)}
        for tensor in tensors:
            if tensor.name not in self.whole and parts.intersection(all_before([tensor.op])):
                raise UnsupportedOpError(
                    "micro_batches: features must reach the wafer as the input function made them. "
                    f"Received: {tensor.name}, which TensorFlow makes of them. Make it in the "
                    "input function, or leave micro_batches out."
                )
        for op in checks:
            if parts.intersection(all_before([op], lambda _: (), on_wafer)):
                tf.compat.v1.logging.warning(
                    "micro_batches: '%s' (%s) in model_fn sees the first part of every batch "
                    "alone; an input function could check or print the whole",
                    op.name,
                    op.type,
                )
        return [self.whole.get(tensor.name, tensor) for tensor in tensors]

    def refuse_first(self, name: str, before: Iterable[Any]) -> None:
        """Raises UnsupportedOpError where the session would compute a fetch of the first part.

        Args:
            name: of the fetch.
            before: operations that it depends on.
        """
        parts = {tensor.partition(":")[0] for tensor in self.whole}
        if any(op.name in parts for op in before):
            self._refuse([name])

    def shape(self, step: StepGraph, kind: str) -> None:
        """Makes a captured step a part of the batch's; raises UnsupportedOpError."""
        fates, sums = split_micro_batches(step, kind, self.count, self.whole)
        self.fates.update(fates)
        self.sums = sums

    def note(self, program: Program, part: str, store: Store) -> None:
        """Keeps in mind which part a program is for, and has room for the sums over parts."""
        self.made.append((program, part))
        store.reserve(
            Variable(name, program.slots[slot].type)
            for name, slot in program.variables.items()
            if name.endswith(f"/{SUM}")
        )

    def part_of(self, program: Program) -> str:
        """Which part a program is for."""
        found = [part for made, part in self.made if made is program]
        return found[0]

    def run(
        self,
        session: SessionClient,
        features: Mapping[str, Array],
        wanted: frozenset[str],
        updates: bool,
        learn: Callable[[Mapping[str, TensorType]], None],
    ) -> dict[str, Array]:
        """Runs a step on all parts; see SessionClient.run.

        Args:
            session: runs the parts.
            features: of the whole batch.
            wanted: names of the values it must return.
            updates: whether it changes variables.
            learn: captures a step for features of such types, which tells `shape` what it wants.

        Raises:
            UnsupportedOpError: a wanted value of the whole batch does not follow from the parts'.
            DataError: the batch has another number of rows.
        """
        for name in self.whole:
            rows = features[name].shape[:1] if name in features else ()
            if rows and rows[0] != self.rows * self.count:
                raise DataError(
                    f"{self.whole[name].name}: with micro_batches, a batch must have the rows that "
                    f"its shape says, {self.rows * self.count}. Received: {rows[0]}. Correct the "
                    "shape in the input function, or leave micro_batches out."
                )
        if not self.fates or not wanted <= self.fates.keys():
            learn(self._types(features))
        self._refuse(sorted(name for name in wanted if self.fates.get(name) == UNKNOWN))
        parts = [self.part(features, index) for index in range(self.count)]
        kinds = [FIRST, *[MIDDLE] * (self.count - 2), LAST] if updates else [VALUES] * self.count
        shared = self._shared(session, parts)
        combined = self._combinable(wanted)
        found = [
            session.run(
                {**part, **shared}, combined if kind in (FIRST, MIDDLE) else wanted, updates, kind
            )
            for part, kind in zip(parts, kinds)
        ]
        return {name: self._combined(name, found) for name in found[-1]}

    def _types(self, features: Mapping[str, Array]) -> dict[str, TensorType]:
        """Types of the features of a part, given those of the whole batch."""
        part = self.part(features, 0)
        return {name: TensorType(array.dtype.name, array.shape) for name, array in part.items()}

    def requests(self, request: Request) -> list[Request]:
        """What a step asks a session for, that which updates variables first.

        Args:
            request: for a part, which says nothing yet of what the parts share.
        """
        given = replace(request, types={**request.types, **self.sums})
        if not request.updates:
            found = [replace(given, part=VALUES)]
        else:
            early = replace(given, wanted=self._combinable(request.wanted))
            found = [replace(given, part=LAST), replace(early, part=FIRST)]
            if self.count > 2:
                found.append(replace(early, part=MIDDLE))
        if self.sums:
            sums = frozenset(self.sums)
            found.append(replace(request, wanted=sums, updates=False, part=COUNTS))
        return found

    def _combinable(self, wanted: frozenset[str]) -> frozenset[str]:
        """Values that every part must return, and not the last alone."""
        return frozenset(name for name in wanted if self.fates.get(name) == MEAN)

    def part(self, features: Mapping[str, Array], index: int = 0) -> dict[str, Array]:
        """The features of one part."""
        start = index * self.rows
        return {
            name: array[start : start + self.rows] if name in self.whole else array
            for name, array in features.items()
        }

    def _shared(
        self, session: SessionClient, parts: Sequence[Mapping[str, Array]]
    ) -> dict[str, Array]:
        """Sums over wafers, of all parts."""
        if not self.sums:
            return {}
        found = [session.run(part, frozenset(self.sums), False, COUNTS) for part in parts]
        return {
            n: np.asarray(np.sum([p[n] for p in found], 0), found[0][n].dtype) for n in self.sums
        }

    def _combined(self, name: str, found: Sequence[Mapping[str, Array]]) -> Array:
        """A result of the step; the last part's where nobody wants what the parts cannot say."""
        fate = self.fates.get(name)
        if fate == MEAN:
            last = found[-1][name]
            mean = np.mean([each[name] for each in found], dtype=np.float64)
            return np.asarray(mean, last.dtype)
        return found[-1][name]

    def _refuse(self, unknown: Sequence[str]) -> None:
        if unknown:
            raise UnsupportedOpError(
                f"'{unknown[0]}': with micro_batches, what is asked of a step must be a float32 "
                "number, of which the mean over the parts is taken, or follow from the update. "
                "Received: another. Ask for something else, or leave micro_batches out."
            )


def split_batch(
    config: Any, on_wafer: bool, mode: str, features: Any, labels: Any
) -> tuple[Optional[MicroBatches], Any, Any]:
    """The parts of a batch, with features and labels of the first, in the default graph.

    Args:
        config: the run configuration.
        on_wafer: whether the model goes there; the host runs whole batches.
        mode: a tf.estimator.ModeKeys; only training runs in parts.
        features: as the input function gives them.
        labels: likewise.

    Raises:
        ConfigError: they cannot be split.
    """
    count = config.micro_batches
    if not on_wafer or mode != tf.estimator.ModeKeys.TRAIN or count == 1:
        return None, features, labels
    rows = _rows_of((features, labels), count)
    parts = MicroBatches(count, rows // count, {})

    def first(tensor: Any) -> Any:
        if not tensor.shape.rank:
            return tensor
        part = tf.identity(tensor[: rows // count], name="micro_batch")
        parts.whole[part.name] = tensor
        return part

    return parts, *map_fetches((features, labels), first)


def _rows_of(batch: Any, count: int) -> int:
    """Rows of every tensor of a batch."""
    if job.wafers() > 1 or execution_mode_from_environment() != "weight_streaming":
        raise ConfigError(
            "micro_batches: needs one wafer, in weight streaming mode. Received: "
            f"{job.wafers()} in {execution_mode_from_environment()} mode. Leave micro_batches out; "
            "with several wafers, train_input.batch_size is what each of them takes."
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
                "micro_batches: every feature must be a tensor whose first dimension is the batch, "
                f"of a size that is known. Received: {name}, {shape}, beside {rows} rows. Give "
                "batch() drop_remainder=True, or leave micro_batches out."
            )
        rows = first
    if rows is None or rows % count:
        raise ConfigError(
            f"micro_batches: must divide the rows of a batch. Received: {count}, {rows} rows. "
            "Choose a divisor."
        )
    return rows


def _in_graph(name: str) -> Any:
    return tf.compat.v1.get_default_graph().get_tensor_by_name(name)
