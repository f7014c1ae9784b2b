"""Finds the real tokens of a batch, and whether its padding may be removed.

Letters: B sequences, S their padded length, T real tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Optional

import numpy as np

from cerebras_tf.errors import PaddingError
from cerebras_tf.ir import Array
from cerebras_tf.ir.binding import substitute
from cerebras_tf.ir.packing import (
    BIAS,
    FIRST,
    HIDDEN,
    HIDING,
    LIST,
    OFFSETS,
    POSITIONS,
    REAL,
    ROW_OF,
    ROWS,
    SEQUENCES,
    SPAN,
    Check,
    Packing,
    TokenSpace,
    feature_name,
)
from cerebras_tf.kernels.registry import evaluate


class _Tokens:
    """The real tokens of a batch: their positions b S + s, and the lengths of sequences."""

    def __init__(self, rows: Array, dims: tuple[int, int], lengths: Array) -> None:
        self.rows, self.dims, self.lengths = rows.astype(np.int32), dims, lengths
        self.row_of = np.full(dims[0] * dims[1], -1, np.int32)
        self.row_of[self.rows] = np.arange(len(rows), dtype=np.int32)

    def features(self, name: str) -> dict[str, Array]:
        """Derived features by name."""
        offsets = np.concatenate([[0], np.cumsum(self.lengths)]).astype(np.int32)
        kinds = {
            ROWS: self.rows,
            OFFSETS: offsets,
            POSITIONS: self.rows % np.int32(self.dims[1]),
            SEQUENCES: self.rows // np.int32(self.dims[1]),
            ROW_OF: self.row_of,
        }
        return {feature_name(name, kind): array for kind, array in kinds.items()}

    def padded(self, value: Array, layout: int) -> Array:
        """The elements of a value at padded positions: [positions, ...]."""
        flat = self._flat(value, layout)
        found: Array = flat[self.row_of < 0]
        return found

    def largest(self, value: Array, layout: int) -> Array:
        """The largest element of a value at real positions of each sequence: [B, ...]."""
        flat = self._flat(value, layout)
        found = np.full((self.dims[0], flat.shape[1]), -np.inf, np.float32)
        np.maximum.at(found, self.rows // self.dims[1], flat[self.rows].astype(np.float32))
        return found

    def ends(self) -> tuple[Array, Array]:
        """The first and the last position of the real tokens of each sequence [B]."""
        after = np.cumsum(self.lengths)
        positions = self.rows % self.dims[1]
        return positions[after - self.lengths], positions[after - 1]

    def places(self, positions: Array, layout: int) -> Array:
        """Positions b S + s of positions in each sequence, or of flat ones; -1 if outside."""
        most = self.dims[1] if layout else self.row_of.size
        inside = (positions >= 0) & (positions < most)
        if layout:
            firsts = np.arange(self.dims[0]) * self.dims[1]
            positions = positions + firsts.reshape(-1, *(1,) * (positions.ndim - 1))
        found: Array = np.where(inside, positions, -1)
        return found

    def _flat(self, value: Array, layout: int) -> Array:
        if layout:
            shape = (self.dims[0], *value.shape[1:layout], self.dims[1], *value.shape[layout + 1 :])
            value = np.moveaxis(np.broadcast_to(value, shape), layout, 1)
        return value.reshape(self.row_of.size, -1)


def pack_batch(
    packing: Packing, features: Mapping[str, Array], sizes: Mapping[str, int]
) -> dict[str, Array]:
    """The derived features of a batch, by name.

    Raises:
        PaddingError: padding must not be removed from this batch; the message gives the reason.
    """
    values = _evaluate(packing, features, sizes)
    found: dict[str, _Tokens] = {}
    for space in packing.spaces:
        found[space.name] = _tokens(space, [values[i] for i in space.values], sizes)
    for check in packing.checks:
        _require(check, found[check.space], values, found.get(check.among))
    derived: dict[str, Array] = {}
    for name, tokens in found.items():
        derived.update(tokens.features(name))
    return derived


def real_tokens(packing: Packing, derived: Mapping[str, Array]) -> dict[str, int]:
    """Number of real tokens of a batch, by symbol, from the result of pack_batch."""
    return {s.symbol: len(derived[feature_name(s.name, ROWS)]) for s in packing.spaces}


def _evaluate(
    packing: Packing, features: Mapping[str, Array], sizes: Mapping[str, int]
) -> list[Array]:
    graph = packing.graph
    table = {value: features[value.name] for value in graph.inputs}
    for node in graph.nodes:
        if node.op == "constant":
            table[node.output] = node.attrs["value"]
            continue
        attrs = substitute(node.attrs, sizes)
        results = evaluate(node.op, [table[value] for value in node.inputs], attrs)
        table.update(zip(node.outputs, results))
    return [table[value] for value in graph.outputs]


def _tokens(space: TokenSpace, values: list[Array], sizes: Mapping[str, int]) -> _Tokens:
    dims: tuple[int, int] = substitute(space.dims, sizes)
    if space.kind == BIAS:
        real = np.ones(dims, bool)
        for value in values:
            real &= _visible(value, dims)
        lengths = real.sum(axis=1)
        if not lengths.all():
            at = int(np.argmin(lengths))
            raise PaddingError(f"sequence {at} of the batch consists of padding only")
        return _Tokens(np.flatnonzero(real), dims, lengths)
    used = np.zeros(dims, bool)
    for value in values:
        used |= (value != 0).reshape(dims)
    if space.kind == LIST:
        if not used.any():
            used[0, 0] = True  # a program needs at least one token; this one has weight 0
        return _Tokens(np.flatnonzero(used), dims, used.sum(axis=1))
    last = dims[1] - np.argmax(used[:, ::-1], axis=1)
    lengths = np.where(used.any(axis=1), last, 1)  # at least one, of weight 0
    return _Tokens(np.flatnonzero(np.arange(dims[1]) < lengths[:, None]), dims, lengths)


def _visible(bias: Array, dims: tuple[int, int]) -> Array:
    """Whether keys are visible [B, S], by a mask that broadcasts to [B, heads, queries, S].

    It is what is added to scores, or True for visible keys.
    """
    bias = bias.reshape((1,) * (4 - bias.ndim) + bias.shape)
    hidden = ~bias if bias.dtype == bool else bias <= HIDING
    if bias.dtype != bool and not (hidden | (bias == 0)).all():
        raise PaddingError("the attention mask contains numbers between 0 and -10000, or above 0")
    if not (hidden == hidden[:, :1, :1]).all():
        raise PaddingError("the attention mask differs between queries or heads")
    return np.broadcast_to(~hidden[:, 0, 0], dims)


def _require(check: Check, tokens: _Tokens, values: list[Array], among: Optional[_Tokens]) -> None:
    """Raises PaddingError where a check fails."""
    where = f"'{check.source}'"
    if check.kind == FIRST:
        first, last = tokens.ends()
        before = last - first >= tokens.lengths
        before |= first > 0
        if before.any():
            at = int(np.argmax(before))
            raise PaddingError(
                f"{where} draws random numbers by position, and sequence {at} of the batch has "
                "padding before real tokens"
            )
        return
    if check.kind == SPAN:
        first, last = tokens.ends()
        if (last - first >= check.number).any():
            at = int(np.argmax(last - first))
            raise PaddingError(
                f"{where} sees {check.number} tokens, and sequence {at} of the batch is longer"
            )
        return
    value = values[check.value]
    if check.kind == REAL:
        places = tokens.places(value, check.layout).reshape(-1)
        if among is not None:
            places = places[among.rows]
        if (places < 0).any() or (tokens.row_of[places] < 0).any():
            raise PaddingError(f"{where} reads at a position that is padding")
        return
    padded = tokens.padded(value, check.layout)
    if check.kind == HIDDEN:
        if not (padded <= HIDING).all():
            raise PaddingError(f"{where} adds a mask that does not hide padding")
        if not (tokens.largest(value, check.layout) >= 0).all():
            raise PaddingError(f"{where} adds a mask that hides all of a sequence")
    elif (padded != 0).any():
        raise PaddingError(f"{where} multiplies padding by a number that is not 0")
