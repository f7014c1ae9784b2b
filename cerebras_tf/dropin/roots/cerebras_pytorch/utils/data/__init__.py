"""Data loading."""

from __future__ import annotations

from cerebras.pytorch.utils.data import DataExecutor, DataLoader, compute_num_steps

__all__ = ["DataExecutor", "DataLoader", "compute_num_steps"]
