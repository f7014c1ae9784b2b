"""The op table: types, gradient rule and cost of every op. Importing this package fills it."""

from __future__ import annotations

import importlib
import pkgutil

from cerebras_tf.ops.builder import Builder, Evaluate, Operand
from cerebras_tf.ops.registry import (
    OPS,
    OpDef,
    can_fold,
    draws,
    gives_view,
    infer,
    is_view,
    lookup,
    regions,
    viewed,
)

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = [
    "OPS",
    "Builder",
    "Evaluate",
    "OpDef",
    "Operand",
    "can_fold",
    "draws",
    "gives_view",
    "infer",
    "is_view",
    "lookup",
    "regions",
    "viewed",
]
