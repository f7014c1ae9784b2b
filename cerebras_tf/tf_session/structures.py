"""Structures of tensors as TensorFlow's sessions take them, whose keys need not be comparable."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, Optional

# Of a class of structures: what takes one apart, and what makes one like it of other parts.
_Form = tuple[Callable[[Any], list[Any]], Callable[[Any, list[Any]], Any]]


def map_fetches(structure: Any, change: Callable[[Any], Any]) -> Any:
    """Applies a function to the leaves of a structure: what is no dict, list, tuple or attrs."""
    if structure is None:
        return None
    form = _form(structure.__class__)  # of what TensorFlow wraps to track it, what it wraps
    if form is None:
        return change(structure)
    take, make = form
    return make(structure, [map_fetches(part, change) for part in take(structure)])


def leaves(structure: Any) -> list[Any]:
    """Leaves of a structure in its own order; keys of its dicts need not be comparable."""
    found: list[Any] = []
    _add_leaves(structure, found)
    return found


def _add_leaves(structure: Any, found: list[Any]) -> None:
    if structure is None:
        return
    form = _form(structure.__class__)  # as in map_fetches
    if form is None:
        found.append(structure)
        return
    for part in form[0](structure):
        _add_leaves(part, found)


@functools.cache
def _form(kind: Any) -> Optional[_Form]:
    """How structures of a class are taken apart and made, as TensorFlow's session does; or None."""
    if issubclass(kind, Mapping):
        if issubclass(kind, defaultdict):
            return _values, lambda like, parts: kind(like.default_factory, zip(like, parts))
        return _values, lambda like, parts: kind(zip(like, parts))
    if issubclass(kind, list) or kind is tuple:
        return list, lambda like, parts: kind(parts)
    if issubclass(kind, tuple):  # a namedtuple
        return list, lambda like, parts: kind(*parts)
    fields = getattr(kind, "__attrs_attrs__", None)  # of classes made by attrs
    if fields is None:
        return None
    names = [field.name for field in fields]
    return (
        lambda structure: [getattr(structure, name) for name in names],
        lambda like, parts: kind(*parts),
    )


def _values(structure: Mapping[Any, Any]) -> list[Any]:
    return list(structure.values())
