"""The run: device, steps, closures and modes."""

from __future__ import annotations

from cerebras_pytorch.core import cb_model, modes

from cerebras.pytorch.platform import name_scope

__all__ = ["cb_model", "modes", "name_scope"]
