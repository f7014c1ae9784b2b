"""Runs a step as micro-batches, which are equal parts of a batch or several batches.

passes/split_micro_batches.py changes the step graph so that gradients are accumulated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Optional, Union

import numpy as np

from cerebras_tf.errors import DataError, UnsupportedOpError
from cerebras_tf.ir import Array, StepGraph, TensorType, Variable
from cerebras_tf.ir.program import Program
from cerebras_tf.memoryx.store import Store
from cerebras_tf.passes.batch_facts import BatchFacts
from cerebras_tf.passes.split_micro_batches import (
    ABOUT_MEAN,
    COUNTS,
    FIRST,
    LAST,
    MEAN,
    MIDDLE,
    OF_LAST,
    SUM,
    TOTAL,
    UNKNOWN,
    VALUES,
    split_micro_batches,
)
from cerebras_tf.runtime.client import SessionClient
from cerebras_tf.runtime.protocol import Batch, Request

_AVERAGED = (MEAN, ABOUT_MEAN, TOTAL)


@dataclass
class MicroBatches:
    """The micro-batches of a step.

    Attributes:
        count: number of micro-batches.
        rows: rows of one micro-batch, a part of a batch; None if each is a batch of its own.
        batched: names of the features that differ between them, with the names that errors show.
        combined: how the values of the micro-batches combine, by result.
        constants: values of results that are constants of the whole batch, by name.
        sums: types of the sums over wafers, by name; micro-batches share them.
        wanted: names of the values requested of the last step.
    """

    count: int
    rows: Optional[int]
    batched: dict[str, str] = field(default_factory=dict)
    combined: dict[str, str] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    sums: dict[str, TensorType] = field(default_factory=dict)
    wanted: frozenset[str] = frozenset()

    def transform(
        self, step: StepGraph, kind: str, capture: Callable[[Mapping[str, int]], StepGraph]
    ) -> None:
        """Turns a captured step into that of one micro-batch.

        Args:
            kind: of the micro-batch.
            capture: captures the step for other numbers of rows of some features.

        Raises:
            UnsupportedOpError: micro-batches would compute another step than the whole batch.
        """
        if self.rows is None or kind not in (LAST, VALUES):
            are_parts = self.rows is not None
            found, self.sums = split_micro_batches(step, kind, self.count, self.batched, are_parts)
            if not are_parts:
                self.combined.update(found)
            return
        whole = capture(dict.fromkeys(self.batched, self.rows * self.count))
        facts = BatchFacts(step, whole, self.batched)
        if self.rows == 1:  # which may look like a size that never changes
            facts.require_mean_losses()
            facts.require_updates()
            larger = capture(dict.fromkeys(self.batched, 2 * self.count))
            facts = BatchFacts(whole, larger, self.batched)
        facts.require_mean_losses()
        found, self.sums = split_micro_batches(step, kind, self.count, self.batched)
        facts.require_updates()
        for name, combined in found.items():
            self.combined[name] = _refined(combined, *facts.combination(name))
            constant = whole.results[name].constant
            if combined == OF_LAST and constant is not None:  # such as a number of rows
                self.combined[name], self.constants[name] = OF_LAST, constant

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
        parts: Sequence[Mapping[str, Array]],
        wanted: frozenset[str],
        updates: bool,
        capture: Callable[[Mapping[str, TensorType]], None],
        activation_bytes: Optional[int] = None,
    ) -> dict[str, Array]:
        """Runs a step as micro-batches; see SessionClient.run.

        Args:
            session: runs the micro-batches.
            parts: the features of every micro-batch; see `parts`.
            wanted: names of the values to return.
            updates: whether the step updates variables.
            capture: captures the step for a micro-batch of these types, which calls `transform`.
            activation_bytes: the most memory for activations; None for what the session has.

        Raises:
            UnsupportedOpError: a wanted value does not follow from those of the micro-batches.
        """
        self.wanted = wanted
        if not self.combined or not wanted <= self.combined.keys():
            capture(_types(parts[0]))
        refuse_values(sorted(name for name in wanted if self.combined.get(name) == UNKNOWN))
        kinds = [FIRST, *[MIDDLE] * (self.count - 2), LAST] if updates else [VALUES] * self.count
        shared = self._cross_wafer_sums(session, parts)
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
            found = [replace(given, kind=VALUES)]
        else:
            early = replace(given, wanted=self._averaged(request.wanted))
            found = [replace(given, kind=LAST), replace(early, kind=FIRST)]
            if self.count > 2:
                found.append(replace(early, kind=MIDDLE))
        if self.sums:
            sums = frozenset(self.sums)
            found.append(replace(request, wanted=sums, updates=False, kind=COUNTS))
        return found

    def parts(
        self, features: Union[Mapping[str, Array], Sequence[Mapping[str, Array]]]
    ) -> list[Mapping[str, Array]]:
        """The features of every micro-batch.

        Args:
            features: those of the whole batch, or of each batch where `rows` is None.

        Raises:
            DataError: the batch has another number of rows.
        """
        if not isinstance(features, Mapping):
            return list(features)
        assert self.rows is not None
        for name, shown in self.batched.items():
            rows = features[name].shape[:1] if name in features else ()
            if rows and rows[0] != self.rows * self.count:
                raise DataError(
                    f"{shown}: with micro_batches, a batch must have as many rows as its static "
                    f"shape, {self.rows * self.count}. Received: {rows[0]}. Drop the last batch of "
                    "the data if it is smaller, or remove micro_batches."
                )
        return [
            {
                name: array[start : start + self.rows] if name in self.batched else array
                for name, array in features.items()
            }
            for start in range(0, self.rows * self.count, self.rows)
        ]

    def returned(self, values: frozenset[str], wanted: frozenset[str], kind: str) -> frozenset[str]:
        """Those of some values that a program returns.

        Args:
            values: names of the values that a program for whole batches would return.
            wanted: names of the values that are requested of this program.
            kind: of the micro-batch.
        """
        if kind == COUNTS:
            return wanted
        return self._averaged(values) if kind in (FIRST, MIDDLE) else values

    def settings(self, kind: str) -> tuple[str, ...]:
        """The settings that the program of a micro-batch depends on."""
        given = sorted(self.batched)
        return (f"kind={kind} count={self.count} rows={self.rows} batched={given}",)

    def approximated(self, wanted: frozenset[str]) -> list[str]:
        """Wanted values that are known only by approximation."""
        return sorted(name for name in wanted if self.combined.get(name) == ABOUT_MEAN)

    def _averaged(self, wanted: frozenset[str]) -> frozenset[str]:
        """Values that every micro-batch must return, not only the last."""
        return frozenset(name for name in wanted if self.combined.get(name) in _AVERAGED)

    def _cross_wafer_sums(
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
        """A result of the step from those of the micro-batches."""
        last, combined = found[-1][name], self.combined.get(name)
        if name in self.constants:
            return self.constants[name]
        if combined not in _AVERAGED:
            return last
        reduce = np.sum if combined == TOTAL else np.mean
        return np.asarray(reduce([each[name] for each in found], dtype=np.float64), last.dtype)


def _refined(combined: str, power: Optional[int], exact: bool) -> str:
    """How values of micro-batches combine, with what is known of their dependence on the batch."""
    if combined == OF_LAST:
        return OF_LAST if power == 0 else UNKNOWN
    if combined != MEAN:
        return combined
    return (
        {0: MEAN, -1: TOTAL}.get(power, ABOUT_MEAN) if exact and power is not None else ABOUT_MEAN
    )


def _types(features: Mapping[str, Array]) -> dict[str, TensorType]:
    return {name: TensorType(array.dtype.name, array.shape) for name, array in features.items()}


def refuse_values(names: Sequence[str]) -> None:
    """Raises UnsupportedOpError if a step of micro-batches was asked for one of these values."""
    if names:
        raise UnsupportedOpError(
            f"'{names[0]}': with micro-batches, a fetched value must be a float32 scalar, which is "
            "averaged over the micro-batches, or a result of the update. Received: another value. "
            "Remove it from the fetches, or train with one batch per step and without "
            "micro_batches."
        )
