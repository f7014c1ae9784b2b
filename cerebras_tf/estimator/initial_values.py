"""Gives the wafer's variables their first values: each TensorFlow initializer runs once.

Host and wafer therefore start equal, and only a few variables are in the session at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from cerebras_tf.memoryx.store import Store, write

# Initializers run together until their results are this large: a session call costs milliseconds.
BATCH_BYTES = 1 << 28
# Where a store holds less in memory than all variables: this part of that, for TensorFlow has them
# a few times over.
_SHARE = 8


def initialise(session: Any, variables: Mapping[str, Any], store: Store) -> None:
    """Runs the initializers.

    Args:
        session: session of the model's graph.
        variables: TensorFlow variables by name.
        store: gets the values.
    """
    # The second input of the assignment: what a warm start put there, or the initial value.
    values = {name: variable.initializer.inputs[1] for name, variable in variables.items()}
    put_values(session.run, values, store)


def put_values(
    run: Callable[[dict[str, Any]], Any], values: Mapping[str, Any], store: Store
) -> None:
    """Computes tensors and puts them into the store, few enough at a time to be small together.

    Args:
        run: gives the content of a dict of tensors.
        values: tensors by variable name.
        store: gets the values.
    """
    batch: dict[str, Any] = {}
    size = 0
    most = BATCH_BYTES
    if store.total_resident_bytes < sum(spec.type.most_bytes for spec in store.specs.values()):
        most = min(most, store.total_resident_bytes // _SHARE)
    for name, tensor in values.items():
        batch[name] = tensor
        size += store.specs[name].type.most_bytes
        if size >= most:
            _put(run(batch), store)
            batch, size = {}, 0
    if batch:
        _put(run(batch), store)


def _put(contents: Mapping[str, Any], store: Store) -> None:
    for name, content in contents.items():
        write(store, name, np.asarray(content))
