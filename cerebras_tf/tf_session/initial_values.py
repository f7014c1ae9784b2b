"""Gives the wafer's variables their first values: each TensorFlow initializer runs once.

Host and wafer therefore start equal, and only a few variables are in the session at a time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from cerebras_tf.capture.order import all_before
from cerebras_tf.memoryx.store import Store, write
from cerebras_tf.tf_session.lean_session import LeanSession

# Initializers run together until their results are this large: a session call costs milliseconds.
BATCH_BYTES = 1 << 28
# Where a store holds less in memory than all variables: this part of that, for TensorFlow has them
# a few times over.
_SHARE = 32


def initialise(session: Any, variables: Mapping[str, Any], store: Store) -> None:
    """Runs the initializers.

    Args:
        session: session of the model's graph.
        variables: TensorFlow variables by name.
        store: gets the values.
    """
    # The second input of the assignment: what a warm start put there, or the initial value.
    values = {name: variable.initializer.inputs[1] for name, variable in variables.items()}
    computed = {}
    for name, tensor in values.items():
        content = _filled(tensor)
        if content is None:
            computed[name] = tensor
        else:
            write(store, name, content)
    put_values(functools.partial(_run, session), computed, store)


def _run(session: Any, tensors: dict[str, Any]) -> Any:
    """Computes tensors: in a session of their own where nothing of them is needed any more.

    A session keeps for as long as it lives what it needs to compute them again.
    """
    if not isinstance(session, LeanSession) or any(map(_needs_state, tensors.values())):
        return session.run(tensors)
    with session.apart() as own:
        return own.run(tensors)


def _needs_state(tensor: Any) -> bool:
    """Whether a tensor follows from variables or other resources of a session."""
    types = {made.dtype for op in all_before([tensor.op]) for made in op.outputs}
    return any(dtype == tf.resource or dtype != dtype.base_dtype for dtype in types)


def put_values(
    run: Callable[[dict[str, Any]], Any], values: Mapping[str, Any], store: Store
) -> None:
    """Computes tensors and puts them into the store, few enough at a time to be small together.

    Tensors that draw the same random number, as a weight and its moving average do, are computed
    together: TensorFlow would draw anew in a second run.

    Args:
        run: gives the content of a dict of tensors.
        values: tensors by variable name.
        store: gets the values.
    """
    batch: dict[str, Any] = {}
    size = 0
    most = bytes_at_once(store)
    for group in _that_draw_alike(values):
        batch.update(group)
        size += sum(store.specs[name].type.most_bytes for name in group)
        if size >= most:
            _put(run(batch), store)
            batch, size = {}, 0
    if batch:
        _put(run(batch), store)


def _that_draw_alike(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Tensors by name, grouped so that an operation with a state of its own is in one group alone.

    Groups come in the order of their first tensors.
    """
    group_of: dict[Any, dict[str, Any]] = {}
    groups: list[dict[str, Any]] = []
    for name, tensor in values.items():
        drawn = [op for op in all_before([tensor.op]) if _draws(op)]
        met = list({id(group_of[op]): group_of[op] for op in drawn if op in group_of}.values())
        group = met[0] if met else {}
        if not met:
            groups.append(group)
        group[name] = tensor
        for other in met[1:]:
            group.update(other)
            groups = [kept for kept in groups if kept is not other]
            group_of = {op: group if found is other else found for op, found in group_of.items()}
        group_of.update(dict.fromkeys(drawn, group))
    return groups


def _draws(op: Any) -> bool:
    """Whether an operation may give something else when it runs again."""
    return op.op_def.is_stateful and "Variable" not in op.type and op.type != "VarHandleOp"


def _filled(tensor: Any) -> Optional[np.ndarray]:
    """The content of a tensor that is one number over and over, as optimizer state is; else None.

    TensorFlow would fold it into a constant and keep that for as long as the session lives.
    """
    while tensor.op.type == "Identity" and not tensor.op.control_inputs:
        tensor = tensor.op.inputs[0]
    if tensor.op.type != "Fill" or tensor.op.control_inputs:
        return None
    dims, value = map(tf.get_static_value, tensor.op.inputs)
    return None if dims is None or value is None else np.broadcast_to(value, dims)


def bytes_at_once(store: Store) -> int:
    """Bytes of variables that TensorFlow may have at a time: few where the store has few itself."""
    if store.total_resident_bytes < sum(spec.type.most_bytes for spec in store.specs.values()):
        return min(BATCH_BYTES, store.total_resident_bytes // _SHARE)
    return BATCH_BYTES


def _put(contents: Mapping[str, Any], store: Store) -> None:
    for name, content in contents.items():
        write(store, name, np.asarray(content))
