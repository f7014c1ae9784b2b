"""Checks what an error or a logged line says, without fixing its sentences."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pytest


def names(text: object, *facts: object) -> bool:
    """Whether every fact stands in the text; use as `assert names(error, "num_csx", 3)`.

    Args:
        text: an exception, a logged line, or several lines.
        facts: keys, values, file names and numbers that must be in it, as their str().

    Raises:
        AssertionError: one is missing; says which.
    """
    if isinstance(text, Iterable) and not isinstance(text, str):
        text = "\n".join(map(str, text))
    missing = [str(fact) for fact in facts if str(fact) not in str(text)]
    assert not missing, f"missing {missing} in: {text}"
    return True


@contextmanager
def raises(kind: type[BaseException], *facts: object) -> Iterator[None]:
    """pytest.raises, with the facts that the error must name."""
    with pytest.raises(kind) as caught:
        yield
    names(caught.value, *facts)
