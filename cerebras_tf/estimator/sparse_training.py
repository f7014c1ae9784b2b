"""Training with a sparsifier: which weights are masked, and when.

The store holds the masks (memoryx/pruning.py); the step keeps them (passes/mask_weights.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Optional

from cerebras_tf.checkpoints.reader import named
from cerebras_tf.console.log import log_info
from cerebras_tf.errors import ConfigError
from cerebras_tf.ir import Variable
from cerebras_tf.memoryx.pruning import prune
from cerebras_tf.memoryx.store import Store
from cerebras_tf.quantities import counted

_METHODS = ("apply_sparsity", "get_masked_weights")


class SparseTraining:
    """The pruned weights of one training.

    Attributes:
        weights: names of the variables whose masks the step keeps.
        density: share of every pruned weight that is not zero, by name, as far as it is known;
            complete after `apply`.
    """

    def __init__(self, sparsifier: Any, specs: Mapping[str, Variable]) -> None:
        """Finds what a sparsifier will prune.

        Args:
            specs: what each variable of the model is, by name.

        Raises:
            ConfigError: it prunes nothing of this model.
        """
        self._sparsifier = sparsifier
        self._specs = specs
        trained = {
            name: spec.type.static_shape
            for name, spec in specs.items()
            if spec.trainable and spec.type.is_floating
        }
        levels_of = getattr(sparsifier, "get_sparsity_levels", None)
        levels: Optional[dict[str, float]] = None if levels_of is None else levels_of(trained)
        self.weights = tuple(sorted(trained if levels is None else set(levels) & set(trained)))
        if not self.weights:
            raise ConfigError(
                "sparsifier: must prune weights of the model. Received: one that prunes none of "
                f"{', '.join(sorted(trained)[:5])}. Select weights by name in sparsity_level."
            )
        self.density = {name: 1 - share for name, share in (levels or {}).items() if share}

    def apply(self, store: Store, step: int) -> None:
        """Masks the weights of a training that starts at a step; see memoryx.pruning.prune."""
        shares = prune(store, self._sparsifier, self.weights, step, self._state())
        self.density = {name: 1 - share for name, share in shares.items()}
        sizes = {name: math.prod(self._specs[name].type.static_shape) for name in shares}
        pruned = sum(shares[name] * size for name, size in sizes.items())
        total = sum(sizes.values())
        share = f", {pruned / total:.1%} of {total:,} elements" if total else ""
        facts = counted(len(shares), "weight"), share, named(sorted(shares))
        log_info("%s pruned%s, and zero from now on: %s", *facts)

    def _state(self) -> dict[str, str]:
        """The weight of every variable that belongs to one by its name, and has its shape."""
        found = {}
        for name, spec in self._specs.items():
            owner = name
            while "/" in owner and owner not in self.weights:
                owner = owner.rpartition("/")[0]
            if owner == name or owner not in self.weights or not spec.type.is_floating:
                continue
            if spec.type.shape == self._specs[owner].type.shape:
                found[name] = owner
        return found


def check_sparsifier(sparsifier: Any, on_wafer: bool) -> None:
    """Checks what `train` was given.

    Raises:
        ConfigError: it is not a sparsifier, or training runs on the host.
    """
    missing = [name for name in _METHODS if not callable(getattr(sparsifier, name, None))]
    if missing:
        raise ConfigError(
            f"sparsifier: must have the methods {', '.join(_METHODS)}. Received: "
            f"{type(sparsifier).__name__} without {', '.join(missing)}. Derive it from "
            "BaseSparsifier of cerebras.tf.ws.ws_sparsify."
        )
    if not on_wafer:
        raise ConfigError(
            "sparsifier: training must run on the wafer. Received: use_cs False. Train on the "
            "wafer, or remove the sparsifier; then pruned weights are trained again."
        )
