"""Lets transformers pass `is_causal` instead of a mask where the attention mask is plainly causal.

While a model is exported, transformers computes every mask from positions, in case these restart
within a row. The attention of a captured model then reads a mask of query times key length.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Optional
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode

_MODULE = "transformers.masking_utils"
# Functions whose result counts up along its last axis if their first argument does.
_KEEPING = ("add", "__add__", "unsqueeze", "expand")


class _Counting(TorchFunctionMode):  # type: ignore[misc]
    """Remembers tensors that are consecutive numbers along their last axis."""

    def __init__(self) -> None:
        super().__init__()
        self._tensors: dict[int, torch.Tensor] = {}  # kept, so that ids are unique

    def __contains__(self, tensor: Any) -> bool:
        return id(tensor) in self._tensors

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if name == "arange":
            counts = len(args) <= 2 and "step" not in kwargs and "out" not in kwargs
        else:
            counts = name in _KEEPING and bool(args) and args[0] in self
            if name in ("add", "__add__"):
                counts = counts and len(args) == 2 and isinstance(args[1], (int, torch.SymInt))
            elif name == "unsqueeze":
                counts = counts and args[1:] == (0,)
        if counts:
            self._tensors[id(result)] = result
        return result


@contextlib.contextmanager
def plain_causal_masks() -> Iterator[None]:
    """Within: transformers makes no mask for rows that are one sequence without padding."""
    module: Any = sys.modules.get(_MODULE)
    names = ("find_packed_sequence_indices", "_ignore_causal_mask_sdpa")
    if module is None or not all(hasattr(module, name) for name in names):
        yield
        return
    find, ignore = (getattr(module, name) for name in names)
    counting = _Counting()

    def find_packed(position_ids: torch.Tensor) -> Optional[torch.Tensor]:
        return None if position_ids in counting else find(position_ids)

    def is_plain(
        padding_mask: Any, q_length: Any, kv_length: Any, *args: Any, **kwargs: Any
    ) -> Any:
        given = [*args, *kwargs.values()]  # offsets of query and key, and the window
        whole = padding_mask is None and all(each is None or _is_zero(each) for each in given)
        if whole and _same(q_length, kv_length):
            return True
        return ignore(padding_mask, q_length, kv_length, *args, **kwargs)

    with contextlib.ExitStack() as stack:
        for name, function in zip(names, (find_packed, is_plain)):
            stack.enter_context(mock.patch.object(module, name, function))
        stack.enter_context(counting)
        yield


def _is_zero(number: Any) -> bool:
    return isinstance(number, int) and number == 0


def _same(first: Any, second: Any) -> bool:
    """Whether two lengths are equal for all batches."""
    if isinstance(first, int) and isinstance(second, int):
        return first == second
    return str(first) == str(second)
