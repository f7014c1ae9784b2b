"""Structures of tensors as TensorFlow's sessions take them, whose keys need not be comparable."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, Optional


def map_fetches(structure: Any, change: Callable[[Any], Any]) -> Any:
    """Applies a function to the leaves of a structure: what is no dict, list, tuple or attrs."""
    if structure is None:
        return None
    parts = _parts(structure)
    if parts is None:
        return change(structure)
    return _like(structure, [map_fetches(part, change) for part in parts])


def leaves(structure: Any) -> list[Any]:
    """Leaves of a structure in its own order; keys of its dicts need not be comparable."""
    found: list[Any] = []
    map_fetches(structure, found.append)
    return found


def _parts(structure: Any) -> Optional[list[Any]]:
    """What a structure holds, in its order; None of a leaf. Structures are TensorFlow's own."""
    kind: Any = structure.__class__  # of what TensorFlow wraps to track it, what it wraps
    taken = _taken_apart(kind)
    return None if taken is None else taken(structure)


@functools.cache
def _taken_apart(kind: Any) -> Optional[Callable[[Any], list[Any]]]:
    """How structures of a class are taken apart; None of leaves."""
    if issubclass(kind, Mapping):
        return lambda structure: list(structure.values())
    if issubclass(kind, (list, tuple)):
        return list
    fields = getattr(kind, "__attrs_attrs__", None)  # of classes made by attrs
    if fields is None:
        return None
    return lambda structure: [getattr(structure, field.name) for field in fields]


def _like(structure: Any, parts: list[Any]) -> Any:
    """A structure of the same kind that holds other parts, made as TensorFlow's session does."""
    kind: Any = structure.__class__  # as in _parts
    if isinstance(structure, defaultdict):
        return kind(structure.default_factory, zip(structure, parts))
    if isinstance(structure, Mapping):
        return kind(zip(structure, parts))
    if isinstance(structure, list) or kind is tuple:
        return kind(parts)
    return kind(*parts)  # a namedtuple, or a class made by attrs
