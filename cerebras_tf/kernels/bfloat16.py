"""Products in bfloat16 where they can be compiled; elsewhere plain kernels round and multiply."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from typing import Any

from cerebras_tf.kernels import instruction_set as isa


@functools.cache
def in_bfloat16() -> Any:
    """The module compiled_bfloat16, or None where Numba is not installed."""
    if importlib.util.find_spec("numba") is None:
        return None
    return importlib.import_module("cerebras_tf.kernels.compiled_bfloat16")


def instructions() -> isa.Choice:
    """What multiplies bfloat16 numbers on this machine; the first call may try, for 0.1 s.

    Raises:
        ConfigError: CEREBRAS_TF_ISA names something else, or what is not here.
    """
    module = in_bfloat16()
    if module is None:
        return isa.Choice(isa.NONE, "Numba is not installed")
    choice: isa.Choice = module.instructions()
    return choice
