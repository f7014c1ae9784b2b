"""The run: device, steps, closures and modes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from cerebras_pytorch.core import cb_model, modes

__all__ = ["cb_model", "modes", "name_scope"]


@contextlib.contextmanager
def name_scope(name: str) -> Iterator[None]:
    """Accepts a name for the operations within; names of modules are used instead."""
    yield
