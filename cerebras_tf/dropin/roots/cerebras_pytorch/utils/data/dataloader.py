"""The data loader whose batches begin the iterations of a run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cerebras_pytorch.platform import batches


class DataLoader:
    """Iterates over another loader.

    Args:
        loader: any iterable of (nested) tensors.
    """

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        return batches(self._loader)

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
