"""Nested tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional

import torch


def visit_torch_tensors(
    data: Any, scope: Optional[Sequence[str]] = None
) -> Iterator[tuple[list[str], torch.Tensor]]:
    """Yields every tensor of nested dicts, lists and tuples, with the keys that lead to it."""
    scope = list(scope or [])
    if isinstance(data, torch.Tensor):
        yield scope, data
    elif isinstance(data, Mapping):
        for key, value in data.items():
            yield from visit_torch_tensors(value, [*scope, str(key)])
    elif isinstance(data, (list, tuple)):
        for index, value in enumerate(data):
            yield from visit_torch_tensors(value, [*scope, str(index)])
