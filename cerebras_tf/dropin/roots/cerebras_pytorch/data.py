"""The data loader of the original software."""

from __future__ import annotations

from cerebras_pytorch.utils.data.dataloader import DataLoader

__all__ = ["DataLoader"]
