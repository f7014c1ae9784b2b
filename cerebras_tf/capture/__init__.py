"""TensorFlow graph -> IR. Importing this fills the lowering table and imports TensorFlow."""

from __future__ import annotations

import importlib
import pkgutil

from cerebras_tf.capture.registry import LOWERINGS

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["LOWERINGS"]
