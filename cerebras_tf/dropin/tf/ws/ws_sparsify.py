"""The interface of weight sparsity, and the one sparsifier there is: the one that prunes nothing.

Nothing is pruned: whatever class a name asks for, weights stay as they are.
"""

from __future__ import annotations

from typing import Any


class BaseSparsifier:
    """What the estimator asks a sparsifier; derive from it to write one."""

    def apply_sparsity(self, step: int) -> bool:
        """Says whether weights are to be masked at this step."""
        raise NotImplementedError

    def get_masked_weights(
        self, step: int, weights_dict: dict[str, Any], sparse_val: float
    ) -> dict[str, Any]:
        """Returns the weights by variable name, pruned entries set to `sparse_val`."""
        raise NotImplementedError

    def get_num_sparsified_values(self, v_name: str, sparse_val: float) -> int:
        """Returns how many entries of a variable are pruned."""
        raise NotImplementedError


class NoSparsifier(BaseSparsifier):
    """Prunes nothing. Takes and ignores the settings of any sparsifier."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        del args, kwargs

    def apply_sparsity(self, step: int) -> bool:
        """Returns False: no step masks weights."""
        return False

    def get_masked_weights(
        self, step: int, weights_dict: dict[str, Any], sparse_val: float
    ) -> dict[str, Any]:
        """Returns the weights unchanged."""
        return weights_dict

    def get_num_sparsified_values(self, v_name: str, sparse_val: float) -> int:
        """Returns 0."""
        return 0


class _SparsifierMap(dict[str, type[BaseSparsifier]]):
    """Knows every name, as the original did: one that is not registered prunes nothing."""

    def __missing__(self, name: str) -> type[BaseSparsifier]:
        return NoSparsifier

    def __contains__(self, name: object) -> bool:
        return True


SPARSIFIER_MAP = _SparsifierMap()


def get_AdamW_aware_sparsifier_class(
    base_sparsifier: type[BaseSparsifier],
) -> type[BaseSparsifier]:
    """Returns the class that also masks AdamW's moments; without masks that is the same class."""
    return base_sparsifier
