"""Gives the wafer's variables their first values: each TensorFlow initializer runs once.

Host and wafer therefore start equal, and only a few variables are in the session at a time. It
deliberately restores no checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from cerebras_tf.memoryx.store import Store, write

# Initializers run together until their results are this large: a session call costs milliseconds.
BATCH_BYTES = 1 << 28


def initialise(session: Any, variables: Mapping[str, Any], store: Store) -> None:
    """Runs the initializers.

    Args:
        session: session of the model's graph.
        variables: TensorFlow variables by name.
        store: gets the values.
    """
    batch: dict[str, Any] = {}
    size = 0
    for name, variable in variables.items():
        # The second input of the assignment: what a warm start put there, or the initial value.
        batch[name] = variable.initializer.inputs[1]
        size += store.specs[name].type.most_bytes
        if size >= BATCH_BYTES:
            _run(session, batch, store)
            batch, size = {}, 0
    _run(session, batch, store)


def _run(session: Any, values: Mapping[str, Any], store: Store) -> None:
    if values:
        for name, content in session.run(dict(values)).items():
            write(store, name, np.asarray(content))


class Adoption:
    """Takes over variables that a user's init_fn sets in the session.

    Args:
        variables: TensorFlow variables by name; reading them takes operations, made here while the
            graph may still grow.
    """

    def __init__(self, variables: Mapping[str, Any]) -> None:
        with tf.name_scope("wafer/adopted/"):
            self._flags = {name: v.is_initialized() for name, v in variables.items()}
            self._reads = {name: v.read_value() for name, v in variables.items()}

    def take(self, session: Any, store: Store) -> None:
        """Puts the variables that have a value in the session into the store."""
        for name, is_set in session.run(self._flags).items():
            if is_set:
                write(store, name, session.run(self._reads[name]))
