"""Which entries of a weight are pruned: how many of every layer, and where.

A pruned entry is stored as -0.0, so that stores, checkpoints and the host read 0 without a separate
mask, and a resumed run finds the same mask. Kept zeros are +0.0.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from typing import Optional, Union

import numpy as np

from cerebras_tf.errors import ConfigError
from cerebras_tf.ir import Array

# Names of weights that are dense by default, as in the original software.
_DENSE = re.compile("embedding|norm", re.IGNORECASE)
Shapes = Mapping[str, tuple[int, ...]]
# One share for all weights, or shares by regular expressions of names; the first that is found in a
# name counts, and weights without one stay dense.
Level = Union[float, Mapping[str, float]]


def should_sparsify(name: str, shape: tuple[int, ...]) -> bool:
    """Whether a weight is pruned by default: matrices other than embeddings."""
    return len(shape) > 1 and not _DENSE.search(name)


def levels_by_name(shapes: Shapes, level: Mapping[str, float]) -> dict[str, float]:
    """Share of every weight that is pruned, by regular expressions of names.

    Raises:
        ConfigError: a name fits no weight, or is no regular expression.
    """
    found: dict[str, float] = {}
    unused = set(level)
    for name in shapes:
        for pattern, share in level.items():
            try:
                fits = re.search(pattern, name)
            except re.error as error:
                raise ConfigError(
                    "sparsity_level: names must be regular expressions. Received: "
                    f"{pattern!r} ({error}). Escape its special characters."
                ) from error
            if fits:
                unused.discard(pattern)
                found.setdefault(name, share)
    if unused:
        raise ConfigError(
            "sparsity_level: every name must match a weight. Received: "
            f"{', '.join(sorted(unused))}; the weights are {', '.join(sorted(shapes)[:5])}, ... "
            "Correct it."
        )
    return found


def erdos_renyi_levels(
    shapes: Shapes, level: float, power: float = 1.0, kernel: bool = True
) -> dict[str, float]:
    """Shares that prune `level` of all entries together, small layers less than large ones.

    The density of a layer is proportional to (sum of its sizes / product of its sizes)^power; a
    layer that would be denser than 1 is dense, and the others make up for it (Evci et al., Rigging
    the Lottery, 2020, section 3: ER and ERK).

    Args:
        shapes: of the weights, [..., inputs, outputs].
        level: share of all entries.
        power: 0 prunes all layers alike.
        kernel: whether all sizes count (ERK); else the last two (ER), which windows have not.
    """
    raw = {
        name: (sum(sizes) / math.prod(sizes)) ** power
        for name, shape in shapes.items()
        for sizes in [shape if kernel else shape[-2:]]
    }
    dense: set[str] = set()
    while True:
        kept = (1 - level) * sum(math.prod(shape) for shape in shapes.values())
        kept -= sum(math.prod(shapes[name]) for name in dense)
        open_ = {name: raw[name] * math.prod(shapes[name]) for name in shapes if name not in dense}
        factor = kept / sum(open_.values()) if open_ else 0.0
        beyond = {name for name in open_ if factor * raw[name] > 1}
        if not beyond:
            return {n: 0.0 if n in dense else 1 - factor * raw[n] for n in shapes}
        dense.add(max(beyond, key=lambda name: raw[name]))


def kept_count(size: int, level: float) -> int:
    """Entries of a weight of this size that are kept; rounded down."""
    return int((1 - level) * size)


def is_pruned(weight: Array) -> Array:
    """Pruned entries (-0.0) of a weight: bool, of its shape."""
    return np.asarray((weight == 0) & np.signbit(weight))


def top_k(weight: Array, level: float) -> Array:
    """Prunes the smallest magnitudes: bool, of the weight's shape.

    Of equal magnitudes, already pruned ones go first, then the last ones.
    """
    flat = weight.reshape(-1)
    count = flat.size - kept_count(flat.size, level)
    return _smallest(flat, count).reshape(weight.shape)


def _smallest(flat: Array, count: int) -> Array:
    """Marks that many of the smallest magnitudes of [size]."""
    size = np.abs(flat.astype(np.float32))
    size[is_pruned(flat)] = -1.0
    mask = np.zeros(flat.size, bool)
    if count:
        bound = np.partition(size, count - 1)[count - 1]
        mask[size < bound] = True
        equal = np.flatnonzero(size == bound)
        mask[equal[len(equal) - (count - int(mask.sum())) :]] = True
    return mask


def balanced_top_k(weight: Array, level: float) -> Array:
    """Prunes the smallest magnitudes of every column, in total as many as `top_k`.

    The count per column is rounded down; the smallest remaining magnitudes make up the difference.
    """
    matrix = _matrix(weight)
    rows = int(level * matrix.shape[0])
    mask = np.zeros(matrix.shape, bool)
    for column in range(matrix.shape[1]):
        mask[:, column] = _smallest(np.ascontiguousarray(matrix[:, column]), rows)
    left = weight.size - kept_count(weight.size, level) - rows * matrix.shape[1]
    if left > 0:
        kept = np.flatnonzero(~mask)
        mask.reshape(-1)[kept[_smallest(matrix.reshape(-1)[kept], left)]] = True
    return mask.reshape(weight.shape)


def checkerboard(weight: Array, level: float) -> Array:
    """Prunes evenly spaced entries of every row, each row shifted by one from that before it."""
    matrix = _matrix(weight)
    # An entry is kept where the running sum of densities passes a whole number.
    steps = np.floor(np.arange(sum(matrix.shape)) * (1 - level) + 1e-5)
    places = np.arange(matrix.shape[0])[:, None] + np.arange(matrix.shape[1])
    return np.asarray((steps[1:] == steps[:-1])[places].reshape(weight.shape))


def at_random(weight: Array, level: float, name: str, seed: Optional[int]) -> Array:
    """Prunes entries drawn at random, as many as `top_k` does.

    They depend on the weight's name and the seed (None counts as 0) alone, so that resumed runs and
    all wafers draw the same.
    """
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    random = np.random.default_rng([seed or 0, int.from_bytes(digest, "little")])
    mask = np.ones(weight.size, bool)
    mask[random.permutation(weight.size)[: kept_count(weight.size, level)]] = False
    return mask.reshape(weight.shape)


def _matrix(weight: Array) -> Array:
    """The weight as [inputs, outputs]."""
    return weight.reshape(-1, weight.shape[-1])
