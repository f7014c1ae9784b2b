"""Fetches and values of TensorFlow sessions: nested structures and arrays."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, Optional

import numpy as np
import tensorflow as tf

# Functions that split a structure of a class, and that build one from new parts.
_Form = tuple[Callable[[Any], list[Any]], Callable[[Any, list[Any]], Any]]


def map_fetches(structure: Any, change: Callable[[Any], Any]) -> Any:
    """Applies a function to the leaves of nested dicts, lists, tuples and attrs classes."""
    if structure is None:
        return None
    form = _form(structure.__class__)  # the wrapped class, for TensorFlow's tracking wrappers
    if form is None:
        return change(structure)
    split, make = form
    return make(structure, [map_fetches(part, change) for part in split(structure)])


def leaves(structure: Any) -> list[Any]:
    """Leaves of a structure in its own order. Unlike in tf.nest, keys may be incomparable."""
    if structure is None:
        return []
    form = _form(structure.__class__)  # as in map_fetches
    if form is None:
        return [structure]
    return [leaf for part in form[0](structure) for leaf in leaves(part)]


@functools.cache
def _form(kind: Any) -> Optional[_Form]:
    """How TensorFlow's session splits and builds structures of a class; None for leaves."""
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


def for_tensorflow(array: np.ndarray, dtype: str) -> np.ndarray:
    """An array of the IR's dtype as TensorFlow takes it; bfloat16 is stored as uint16 here."""
    return array.view(tf.bfloat16.as_numpy_dtype) if dtype == "bfloat16" else array
