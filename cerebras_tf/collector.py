"""Python's cyclic garbage collector, paused where only long-lived objects are created."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused_collector(lasting: bool = False) -> Iterator[None]:
    """Within: nothing is collected.

    Imports, TensorFlow's graphs and compiler passes create hundreds of thousands of long-lived
    objects. Collections traverse all of them, which takes half of the time of compiling.

    Args:
        lasting: whether the objects live as long as the process, as those of imports do. They
            become the oldest generation, which the next collection does not traverse.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            if lasting and gc.get_freeze_count() == 0:
                gc.freeze()
                gc.unfreeze()
            gc.enable()
