"""Sparsifiers by the names of the original software."""

from __future__ import annotations

from cerebras_tf.memoryx.sparsifier import (
    SPARSIFIER_MAP,
    BalancedTopKSparsifier,
    BaseSparsifier,
    CheckerboardSparsifier,
    ConstantMaskSparsifier,
    TopKSparsifier,
    get_AdamW_aware_sparsifier_class,
)

__all__ = [
    "SPARSIFIER_MAP",
    "BalancedTopKSparsifier",
    "BaseSparsifier",
    "CheckerboardSparsifier",
    "ConstantMaskSparsifier",
    "TopKSparsifier",
    "get_AdamW_aware_sparsifier_class",
]
