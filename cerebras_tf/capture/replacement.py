"""Replaces attributes of TensorFlow while a call needs it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from cerebras_tf.tf_compat.internals import deprecation


class Replacement:
    """Replaces an attribute while at least one call is within `active`.

    Calls may overlap and end in any order, as a suspended `predict` does.
    """

    def __init__(self, owner: Any, name: str, value: Any) -> None:
        self._owner, self._name, self._value = owner, name, value
        self._original: Any = None
        self._depth, self._lock = 0, threading.Lock()

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Within: the attribute is replaced."""
        with self._lock:
            if self._depth == 0:
                self._original = vars(self._owner)[self._name]
                setattr(self._owner, self._name, self._value)
            self._depth += 1
        try:
            yield
        finally:
            with self._lock:
                self._depth -= 1
                if self._depth == 0:
                    setattr(self._owner, self._name, self._original)


# Within `without_deprecation_warnings()`: TensorFlow does not warn that tf.estimator is deprecated.
without_deprecation_warnings = Replacement(deprecation, "_PRINT_DEPRECATION_WARNINGS", False).active
