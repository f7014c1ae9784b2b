"""Finds Python values that traced code changes: it runs once, so they would stay as they are."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from cerebras_tf.errors import UnsupportedOpError

# A number that is read from a tensor is a SymFloat.
_PLAIN = (bool, int, float, str, torch.SymFloat)
_MOST_ITEMS = 1000  # of a container that is read
_OWN = os.path.dirname(os.path.dirname(__file__))  # calls the user's functions
_LIBRARIES = (os.path.dirname(torch.__file__), f"{os.sep}site-packages{os.sep}")


@contextlib.contextmanager
def keeping_values(what: str, fix: str, *reads: Any) -> Iterator[None]:
    """Within: traced code runs, which must not change Python values, such as counters.

    Args:
        what: is traced.
        fix: what to do instead.
        reads: functions and modules that the code consists of.

    Raises:
        UnsupportedOpError: a number or text in them has changed. Library code may do that.
    """
    before = _values(reads)
    yield
    after = _values(reads)
    for place, value in after.items():
        if repr(value) != repr(before.get(place)):
            old = f"was {before[place]}, then" if place in before else "became"
            raise UnsupportedOpError(
                f"{what}: its Python code runs once, so it must not change values. Received: "
                f"{place[0]} {old} {value}. {fix}"
            )


# Name of a value, and id of the function that reads it: several may have variables of one name.
_Place = tuple[str, int]


def _values(reads: Iterable[Any]) -> dict[_Place, Any]:
    """Numbers and texts that functions and modules hold."""
    found: dict[_Place, Any] = {}
    seen: set[int] = set()
    for number, item in enumerate(reads):
        found.update(_held(("", number), item, seen))
    return found


def _held(place: _Place, item: Any, seen: set[int]) -> Iterator[tuple[_Place, Any]]:
    """What an object holds: of modules and functions all, of other objects their attributes."""
    plain, reader = _plain(item), place[1]
    if plain is not None:
        yield place, plain
    if plain is not None or id(item) in seen:
        return
    seen.add(id(item))
    if isinstance(item, torch.nn.Module):
        for path, module in item.named_modules():
            if not _is_of_library(type(module)):
                yield from _attributes((path, reader), module)
                yield from _held((path, reader), type(module).forward, seen)
    elif isinstance(item, functools.partial):
        for each in (item.func, *item.args, *item.keywords.values()):
            yield from _held(place, each, seen)
    elif inspect.ismethod(item):
        for each in (item.__func__, item.__self__):
            yield from _held(place, each, seen)
    elif isinstance(item, FunctionType):
        for key, each in _of_function(item):
            yield from _held((key, id(item)), each, seen)
    elif isinstance(item, LRScheduler) or not _is_of_library(type(item)):
        yield from _attributes(place, item)
        yield from _held(place, vars(type(item)).get("__call__"), seen)


def _is_of_library(kind: type) -> bool:
    module = sys.modules.get(kind.__module__)
    return _is_file_of_library(getattr(module, "__file__", None) or "")


def _is_file_of_library(path: str) -> bool:
    return any(each in path for each in _LIBRARIES) and not path.startswith(_OWN)


def _attributes(place: _Place, item: Any) -> Iterator[tuple[_Place, Any]]:
    for key, value in getattr(item, "__dict__", {}).items():
        plain = _plain(value)
        if plain is not None:
            yield (f"{place[0]}.{key}".lstrip("."), place[1]), plain


def _plain(value: Any) -> Any:
    """A number or text, or those of a container; None for other objects."""
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, dict) and len(value) <= _MOST_ITEMS:
        return {key: each for key, each in value.items() if isinstance(each, _PLAIN)} or None
    if isinstance(value, (list, set)) and len(value) <= _MOST_ITEMS:
        return [each for each in value if isinstance(each, _PLAIN)] or None
    return None


def _of_function(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Variables of enclosing functions, globals and defaults that a function may read."""
    if _is_file_of_library(function.__code__.co_filename):
        return
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            yield name, cell.cell_contents
        except ValueError:  # it has no value yet
            continue
    for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        yield f"{function.__name__}()", value
    for name in _names(function.__code__):
        value = function.__globals__.get(name)
        if not inspect.ismodule(value):
            yield name, value


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)
