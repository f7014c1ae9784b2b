"""Runs a batch as equal micro-batches, one after another; gradients are accumulated.

What makes the micro-batches one step is in passes/split_micro_batches.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Optional

import numpy as np

from cerebras_tf.errors import DataError, UnsupportedOpError
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
from cerebras_tf.runtime.protocol import Batch, Request


@dataclass
class MicroBatches:
    """How a batch is split.

    Attributes:
        count: number of micro-batches.
        rows: rows of one micro-batch.
        batched: names of the features that are split, with the names that errors show.
        combined: how the values of the micro-batches combine, by result.
        sums: types of the sums over wafers, by name; micro-batches share them.
        wanted: names of the values that the last step was asked for.
    """

    count: int
    rows: int
    batched: dict[str, str] = field(default_factory=dict)
    combined: dict[str, str] = field(default_factory=dict)
    sums: dict[str, TensorType] = field(default_factory=dict)
    wanted: frozenset[str] = frozenset()

    def transform(self, step: StepGraph, kind: str) -> None:
        """Turns a captured step into that of one micro-batch; raises UnsupportedOpError."""
        combined, self.sums = split_micro_batches(step, kind, self.count, self.batched)
        self.combined.update(combined)

    def reserve_sums(self, program: Program, store: Store) -> None:
        """Reserves memory in the store for the sums that micro-batches accumulate."""
        store.reserve(
            Variable(name, program.slots[slot].type)
            for name, slot in program.variables.items()
            if name.endswith(f"/{SUM}")
        )

    def run(
        self,
        session: SessionClient,
        features: Mapping[str, Array],
        wanted: frozenset[str],
        updates: bool,
        learn: Callable[[Mapping[str, TensorType]], None],
        activation_bytes: Optional[int] = None,
    ) -> dict[str, Array]:
        """Runs a step as micro-batches; see SessionClient.run.

        Args:
            session: runs the micro-batches.
            features: of the whole batch.
            wanted: names of the values to return.
            updates: whether the step updates variables.
            learn: captures the step for a micro-batch of these types, which calls `transform`.
            activation_bytes: the most memory for activations; None for what the session has.

        Raises:
            UnsupportedOpError: a wanted value does not follow from those of the micro-batches.
            DataError: the batch has another number of rows.
        """
        self.wanted = wanted
        for name, shown in self.batched.items():
            rows = features[name].shape[:1] if name in features else ()
            if rows and rows[0] != self.rows * self.count:
                raise DataError(
                    f"{shown}: with micro_batches, a batch must have as many rows as its static "
                    f"shape, {self.rows * self.count}. Received: {rows[0]}. Correct the shape in "
                    "the input function, or leave micro_batches out."
                )
        if not self.combined or not wanted <= self.combined.keys():
            learn(self.types(features))
        refuse_values(sorted(name for name in wanted if self.combined.get(name) == UNKNOWN))
        parts = [self.part(features, index) for index in range(self.count)]
        kinds = [FIRST, *[MIDDLE] * (self.count - 2), LAST] if updates else [VALUES] * self.count
        shared = self._sums_of(session, parts)
        averaged = self._averaged(wanted)
        batches = [
            Batch(
                {**part, **shared}, averaged if kind in (FIRST, MIDDLE) else wanted, updates, kind
            )
            for part, kind in zip(parts, kinds)
        ]
        found = session.run_micro_batches(batches, activation_bytes)
        return {name: self._combine(name, found) for name in found[-1]}

    def requests(self, request: Request) -> list[Request]:
        """The requests that a step makes of a session, the one that updates variables first.

        Args:
            request: for one micro-batch, without the shared sums.
        """
        self.wanted = request.wanted
        given = replace(request, types={**request.types, **self.sums})
        if not request.updates:
            found = [replace(given, part=VALUES)]
        else:
            early = replace(given, wanted=self._averaged(request.wanted))
            found = [replace(given, part=LAST), replace(early, part=FIRST)]
            if self.count > 2:
                found.append(replace(early, part=MIDDLE))
        if self.sums:
            sums = frozenset(self.sums)
            found.append(replace(request, wanted=sums, updates=False, part=COUNTS))
        return found

    def part(self, features: Mapping[str, Array], index: int = 0) -> dict[str, Array]:
        """The features of one micro-batch."""
        start = index * self.rows
        return {
            name: array[start : start + self.rows] if name in self.batched else array
            for name, array in features.items()
        }

    def types(self, features: Mapping[str, Array]) -> dict[str, TensorType]:
        """Types of the features of a micro-batch, given those of the whole batch."""
        part = self.part(features)
        return {name: TensorType(array.dtype.name, array.shape) for name, array in part.items()}

    def _averaged(self, wanted: frozenset[str]) -> frozenset[str]:
        """Values that every micro-batch must return, not only the last."""
        return frozenset(name for name in wanted if self.combined.get(name) == MEAN)

    def _sums_of(
        self, session: SessionClient, parts: Sequence[Mapping[str, Array]]
    ) -> dict[str, Array]:
        """The sums over wafers of all micro-batches."""
        if not self.sums:
            return {}
        found = [session.run(part, frozenset(self.sums), False, COUNTS) for part in parts]
        return {
            n: np.asarray(np.sum([p[n] for p in found], 0), found[0][n].dtype) for n in self.sums
        }

    def _combine(self, name: str, found: Sequence[Mapping[str, Array]]) -> Array:
        """A result of the step: the mean over micro-batches, or the last one's value."""
        last = found[-1][name]
        if self.combined.get(name) != MEAN:
            return last
        return np.asarray(np.mean([each[name] for each in found], dtype=np.float64), last.dtype)


def refuse_values(names: Sequence[str]) -> None:
    """Raises UnsupportedOpError if a step with micro-batches was asked for one of these values."""
    if names:
        raise UnsupportedOpError(
            f"'{names[0]}': with micro_batches, a value that is fetched must be a float32 scalar, "
            "which is averaged over the micro-batches, or follow from the update. Received: "
            "another. Fetch something else, or leave micro_batches out."
        )
