"""Sparsifiers for `estimator.train(sparsifier=...)`, with the original software's names.

Masks are static: the estimator computes them when training starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

import numpy as np

from cerebras_tf.errors import ConfigError
from cerebras_tf.ir import Array
from cerebras_tf.memoryx import sparsity
from cerebras_tf.memoryx.sparsity import Level, Shapes

_DISTRIBUTIONS = ("uniform", "er", "erk")


class BaseSparsifier:
    """Base class of sparsifiers."""

    def apply_sparsity(self, step: int) -> bool:
        """Whether masks are computed from the weights at this step.

        It is called when training starts. If it returns False, weights keep their masks.
        """
        raise NotImplementedError

    def get_masked_weights(
        self, step: int, weights_dict: Mapping[str, Array], sparse_val: float
    ) -> dict[str, Array]:
        """The weights by variable name, pruned entries set to `sparse_val` (the estimator: NaN)."""
        raise NotImplementedError

    def get_num_sparsified_values(self, v_name: str, sparse_val: float) -> int:
        """Number of entries of a variable that the last masks prune."""
        raise NotImplementedError

    def get_sparsity_levels(self, shapes: Shapes) -> Optional[dict[str, float]]:
        """Share of every weight that will be pruned, by name; None if it is known only from masks.

        Predictions use it before there are weights. Weights that are not listed stay dense.
        """
        return None


class MaskSparsifier(BaseSparsifier):
    """A sparsifier that computes the mask of a weight from the weight and its level.

    Args:
        n_iter: masks are computed at steps that it divides; 1 for any step.
        sparsity_level: share of the weights that is pruned, 0 to 1; or shares by regular
            expressions of names, which then select the weights.
        sparsity_distribution: "uniform" prunes every layer equally; "er" and "erk" prune small
            layers less.
        erk_power_scale: exponent of "er" and "erk"; 0 is uniform.
        epsilon: must be None, as masks do not change.
        zeta: must be None, as masks do not change.
        seed: of random masks; None counts as 0.
        mask_file: must be None.

    Raises:
        ConfigError: an argument is out of range.
    """

    def __init__(
        self,
        n_iter: int = 1,
        sparsity_level: Level = 0.5,
        sparsity_distribution: str = "uniform",
        erk_power_scale: float = 1.0,
        epsilon: None = None,
        zeta: None = None,
        seed: Optional[int] = None,
        mask_file: None = None,
    ) -> None:
        given = sparsity_level if isinstance(sparsity_level, Mapping) else {"": sparsity_level}
        shares = list(given.values())
        _require(isinstance(n_iter, int) and n_iter > 0, "n_iter must be 1 or more", n_iter)
        numbers = all(isinstance(s, (int, float)) and 0 <= s < 1 for s in shares)
        _require(bool(shares) and numbers, "sparsity_level must be in [0, 1)", sparsity_level)
        known = sparsity_distribution in _DISTRIBUTIONS
        allowed = f"sparsity_distribution must be one of {', '.join(_DISTRIBUTIONS)}"
        _require(known, allowed, sparsity_distribution)
        single = sparsity_distribution == "uniform" or not isinstance(sparsity_level, Mapping)
        _require(single, "sparsity_level must be one number for er and erk", sparsity_level)
        _require(erk_power_scale >= 0, "erk_power_scale must be 0 or more", erk_power_scale)
        for name, value in (("epsilon", epsilon), ("zeta", zeta), ("mask_file", mask_file)):
            _require(value is None, f"{name} must be None, because masks are static", value)
        self.n_iter = n_iter
        self.sparsity_level = sparsity_level
        self.sparsity_distribution = sparsity_distribution
        self.erk_power_scale = erk_power_scale
        self.seed = seed
        self._pruned: dict[str, int] = {}

    def apply_sparsity(self, step: int) -> bool:
        """Whether n_iter divides the step."""
        return step % self.n_iter == 0

    def get_sparsity_levels(self, shapes: Shapes) -> dict[str, float]:
        if isinstance(self.sparsity_level, Mapping):
            matrices = {name: shape for name, shape in shapes.items() if len(shape) > 1}
            return sparsity.levels_by_name(matrices, self.sparsity_level)
        chosen = {n: shape for n, shape in shapes.items() if sparsity.should_sparsify(n, shape)}
        if self.sparsity_distribution == "uniform":
            return dict.fromkeys(chosen, self.sparsity_level)
        kernel = self.sparsity_distribution == "erk"
        return sparsity.erdos_renyi_levels(
            chosen, self.sparsity_level, self.erk_power_scale, kernel
        )

    def get_masked_weights(
        self, step: int, weights_dict: Mapping[str, Array], sparse_val: float
    ) -> dict[str, Array]:
        """See BaseSparsifier.get_masked_weights; NaN in the weights counts as pruned."""
        levels = self.get_sparsity_levels({n: w.shape for n, w in weights_dict.items()})
        found = dict(weights_dict)
        for name, level in levels.items():
            weight = np.where(np.isnan(found[name]), -0.0, found[name])
            pruned = self.get_pruned(name, weight, level)
            found[name] = np.where(pruned, sparse_val, weight).astype(found[name].dtype)
        return found

    def get_pruned(self, name: str, weight: Array, level: float) -> Array:
        """Where a weight is pruned: bool, of its shape."""
        pruned = self._mask(name, weight, level)
        self._pruned[name] = int(pruned.sum())
        return pruned

    def _mask(self, name: str, weight: Array, level: float) -> Array:
        raise NotImplementedError

    def get_num_sparsified_values(self, v_name: str, sparse_val: float) -> int:
        """See BaseSparsifier.get_num_sparsified_values; 0 of a variable that is dense."""
        return self._pruned.get(v_name, 0)


class ConstantMaskSparsifier(MaskSparsifier):
    """Prunes entries drawn at random; see memoryx/sparsity.py."""

    def _mask(self, name: str, weight: Array, level: float) -> Array:
        return sparsity.at_random(weight, level, name, self.seed)


class TopKSparsifier(MaskSparsifier):
    """Prunes the smallest magnitudes of every weight."""

    def _mask(self, name: str, weight: Array, level: float) -> Array:
        return sparsity.top_k(weight, level)


class BalancedTopKSparsifier(MaskSparsifier):
    """Prunes the smallest magnitudes of every column of a weight."""

    def _mask(self, name: str, weight: Array, level: float) -> Array:
        return sparsity.balanced_top_k(weight, level)


class CheckerboardSparsifier(MaskSparsifier):
    """Prunes evenly spaced entries."""

    def _mask(self, name: str, weight: Array, level: float) -> Array:
        return sparsity.checkerboard(weight, level)


class _SparsifierMap(dict[str, type[BaseSparsifier]]):
    """Sparsifiers by name; other names raise ConfigError."""

    def __missing__(self, name: str) -> type[BaseSparsifier]:
        raise ConfigError(
            f"SPARSIFIER_MAP: names are {', '.join(sorted(self))}. Received: {name!r}. Masks that "
            "change while training (set), and those from files, are not available."
        )


SPARSIFIER_MAP = _SparsifierMap(
    {
        "constant": ConstantMaskSparsifier,
        "topk": TopKSparsifier,
        "balanced-topk": BalancedTopKSparsifier,
        "checkerboard": CheckerboardSparsifier,
    }
)


def get_AdamW_aware_sparsifier_class(base_sparsifier: type[BaseSparsifier]) -> type[BaseSparsifier]:
    """The class itself: the estimator masks every optimizer's state with the weights."""
    return base_sparsifier


def _require(holds: bool, what: str, received: Any) -> None:
    if not holds:
        raise ConfigError(f"sparsifier: {what}. Received: {received!r}. Correct it.")
