"""Gives the wafer's variables their first values: each TensorFlow initializer runs once, alone.

Host and wafer therefore start equal, and no more than one variable is in the session at a time. It
deliberately restores no checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cerebras_tf.memoryx.store import MemoryStore


def initialise(session: Any, variables: Mapping[str, Any], store: MemoryStore) -> None:
    """Runs the initializers.

    Args:
        session: session of the model's graph.
        variables: TensorFlow variables by name.
        store: gets the values.
    """
    for name, variable in variables.items():
        # The second input of the assignment: what a warm start put there, or the initial value.
        value = variable.initializer.inputs[1]
        store.put(name, np.asarray(session.run(value)))


def adopt(session: Any, variables: Mapping[str, Any], store: MemoryStore) -> None:
    """Takes over variables that a user's init_fn has set in the session.

    Args:
        session: session of the model's graph.
        variables: TensorFlow variables by name.
        store: gets the values.
    """
    names = list(variables)
    flags = session.run([variables[name].is_initialized() for name in names])
    for name, is_set in zip(names, flags):
        if is_set:
            store.put(name, session.run(variables[name].value()))
