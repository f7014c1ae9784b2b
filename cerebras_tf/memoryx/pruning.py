"""Puts a sparsifier's masks on the weights of a store, one weight at a time where that can be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional

import numpy as np

from cerebras_tf.errors import ConfigError
from cerebras_tf.ir import Array
from cerebras_tf.kernels.half_precision import as_float32, to_storage
from cerebras_tf.memoryx.sparsifier import MaskSparsifier
from cerebras_tf.memoryx.sparsity import is_pruned
from cerebras_tf.memoryx.store import Store, reading, writing

# The mask of a weight, True where it is pruned; None where it stays dense.
_MaskOf = Callable[[str], Optional[Array]]


def prune(
    store: Store, sparsifier: Any, weights: Sequence[str], step: int, state: Mapping[str, str]
) -> dict[str, float]:
    """Masks weights with the sparsifier, and clears their optimizer state.

    Args:
        store: all variables have values.
        sparsifier: a BaseSparsifier. A MaskSparsifier gets one weight at a time, others get copies
            of all.
        weights: names of the variables that may be pruned.
        step: the global step.
        state: the weight of every variable of optimizer state that has the weight's shape.

    Returns:
        Share of every pruned weight, by name.

    Raises:
        ConfigError: there are no masks at this step, or the sparsifier returns an unknown weight.
    """
    if not sparsifier.apply_sparsity(step):
        shares = {name: float(is_pruned(_content(store, name)).mean()) for name in weights}
        found = {name: share for name, share in shares.items() if share}
        if not found:
            raise ConfigError(
                f"sparsifier: at step {step}, where training starts, masks must be made or weights "
                "must have them. Received: apply_sparsity is False, and no weight is masked. Let "
                "n_iter divide the step; 1 does."
            )
        return found
    if isinstance(sparsifier, MaskSparsifier):
        mask_of = _own_masks(store, sparsifier, weights)
    else:
        mask_of = _given_masks(store, sparsifier, weights, step)
    kept: dict[str, list[str]] = {}
    for name, weight in state.items():
        kept.setdefault(weight, []).append(name)
    found = {}
    for name in weights:
        mask = mask_of(name)
        if mask is None:
            mask = np.zeros(store.specs[name].type.static_shape, bool)
        _mask(store, name, mask)
        for other in kept.get(name, ()):
            _clear(store, other, mask)
        if mask.any():
            found[name] = float(mask.mean())
    return found


def _own_masks(store: Store, sparsifier: MaskSparsifier, weights: Sequence[str]) -> _MaskOf:
    """Masks of a MaskSparsifier, computed one at a time."""
    levels = sparsifier.get_sparsity_levels(
        {name: store.specs[name].type.static_shape for name in weights}
    )

    def mask_of(name: str) -> Optional[Array]:
        if name not in levels:
            return None
        return sparsifier.get_pruned(name, _content(store, name), levels[name])

    return mask_of


def _given_masks(store: Store, sparsifier: Any, weights: Sequence[str], step: int) -> _MaskOf:
    """Masks of any other sparsifier: NaN in the weights that it returns."""
    contents = {name: _content(store, name) + 0.0 for name in weights}
    masked = sparsifier.get_masked_weights(step, contents, float("nan"))
    for name, content in masked.items():
        if name not in contents or np.shape(content) != contents[name].shape:
            raise ConfigError(
                "get_masked_weights: must return weights that it was given, in their shapes. "
                f"Received: {name!r} of shape {list(np.shape(content))}. Return them by name."
            )
    return {name: np.isnan(content) for name, content in masked.items()}.get


def _content(store: Store, name: str) -> Array:
    """A copy of a variable's value; of half precision in float32."""
    with reading(store, name) as array:
        return np.array(as_float32(array, store.specs[name].type.dtype))


def _mask(store: Store, name: str, mask: Array) -> None:
    """Sets pruned entries, and no others, to -0.0; writes only if that changes bits."""
    content = _content(store, name)
    marked = is_pruned(content)
    if np.array_equal(marked, mask) and not content[mask].any():
        return
    content += 0.0  # other zeros become +0.0
    content[mask] = -0.0
    with writing(store, name) as array:
        array[...] = to_storage(content, store.specs[name].type.dtype)


def _clear(store: Store, name: str, mask: Array) -> None:
    """Sets the entries of a variable to 0 where its weight is pruned."""
    with reading(store, name) as array:
        changes = bool(array[mask].any())
    if changes:
        with writing(store, name) as array:
            array[mask] = 0
