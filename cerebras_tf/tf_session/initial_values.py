"""Initializes the wafer's variables by TensorFlow's initializers.

Host and wafer therefore start equal. Trainable variables that start equal to one another, as Keras'
initializers have no state, are reported. Only a few variables are in the session at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from cerebras_tf.capture.order import all_before
from cerebras_tf.memoryx.store import Store, write
from cerebras_tf.tf_session.lean_session import LeanSession

# Size of the results of initializers that run together, as a session call takes milliseconds.
BATCH_BYTES = 1 << 28
# If the store keeps less than all variables in memory, the size is that memory divided by this,
# since TensorFlow needs several copies.
_SHARE = 32
# Elements of initial values that are compared.
_SAMPLE = 4096


def assignment(variable: Any) -> Any:
    """The operation that assigns a variable's initial value.

    A warm start with another vocabulary leaves the result of the assignment in its place.
    """
    found = variable.initializer
    return found if isinstance(found, tf.Operation) else found.op


def initialize(session: Any, variables: Mapping[str, Any], store: Store) -> None:
    """Runs the initializers.

    Args:
        store: receives the values.
    """
    # The second input of the assignment is the initial value, or that of a warm start.
    values = {name: assignment(variable).inputs[1] for name, variable in variables.items()}
    computed = {}
    for name, tensor in values.items():
        content = _filled(tensor)
        if content is None:
            computed[name] = tensor
        else:
            write(store, name, content)
    trained = {name: tensor for name, tensor in computed.items() if variables[name].trainable}
    compared = {name for name, tensor in trained.items() if _is_stateless(tensor)}
    samples: dict[Any, list[str]] = {}

    def run(tensors: dict[str, Any]) -> Any:
        contents = _run(session, tensors)
        for name in compared.intersection(tensors):
            key = _sample(np.asarray(contents[name]))
            if key is not None:
                samples.setdefault(key, []).append(name)
        return contents

    put_values(run, computed, store)
    _warn_of_equal(sorted(map(sorted, (names for names in samples.values() if names[1:]))))


def _is_stateless(tensor: Any) -> bool:
    """Whether a tensor is drawn as Keras draws. The seed of another draw is the model's choice."""
    return any(op.type.startswith("Stateless") for op in all_before([tensor.op]))


def _sample(content: np.ndarray) -> Any:
    """Shape and some elements, to compare initial values; None if the elements are equal."""
    sample = content.reshape(-1)[:: max(1, content.size // _SAMPLE)]
    if sample.size == 0 or (sample == sample[0]).all():
        return None
    return content.shape, sample.tobytes()


def _warn_of_equal(groups: list[list[str]]) -> None:
    if groups:
        count, names = sum(map(len, groups)), ", ".join(groups[0][:3])
        tf.compat.v1.logging.warning(
            "model_fn: trainable variables must start with different values. "
            f"Received: {count:,} that start equal, such as {names}. Keras returns the same values "
            "at each call of an initializer. Give each layer an initializer of its own."
        )


def _run(session: Any, tensors: dict[str, Any]) -> Any:
    """Computes tensors, if possible in a separate session.

    A session keeps everything that it would need to compute them again.
    """
    if not isinstance(session, LeanSession) or any(map(_needs_state, tensors.values())):
        return session.run(tensors)
    with session.separate() as own:
        return own.run(tensors)


def _needs_state(tensor: Any) -> bool:
    """Whether a tensor depends on variables or other resources of a session."""
    types = {made.dtype for op in all_before([tensor.op]) for made in op.outputs}
    return any(dtype == tf.resource or dtype != dtype.base_dtype for dtype in types)


def put_values(
    run: Callable[[dict[str, Any]], Any], values: Mapping[str, Any], store: Store
) -> None:
    """Computes tensors in small groups and writes them to the store.

    Tensors that depend on the same random number, such as a weight and its moving average, are
    computed together: TensorFlow would draw another number in a second run.

    Args:
        run: returns the content of a dict of tensors.
        store: receives the values.
    """
    batch: dict[str, Any] = {}
    size = 0
    most = bytes_at_once(store)
    for group in _group_by_draws(values):
        batch.update(group)
        size += sum(store.specs[name].type.max_bytes for name in group)
        if size >= most:
            _put(run(batch), store)
            batch, size = {}, 0
    if batch:
        _put(run(batch), store)


def _group_by_draws(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Groups of tensors by name; no two groups depend on the same stateful operation.

    Groups come in the order of their first tensors.
    """
    group_of: dict[Any, dict[str, Any]] = {}
    groups: list[dict[str, Any]] = []
    for name, tensor in values.items():
        drawn = [op for op in all_before([tensor.op]) if _draws(op)]
        sharing = list({id(group_of[op]): group_of[op] for op in drawn if op in group_of}.values())
        group = sharing[0] if sharing else {}
        if not sharing:
            groups.append(group)
        group[name] = tensor
        for other in sharing[1:]:
            group.update(other)
            groups = [kept for kept in groups if kept is not other]
            group_of = {op: group if found is other else found for op, found in group_of.items()}
        group_of.update(dict.fromkeys(drawn, group))
    return groups


def _draws(op: Any) -> bool:
    """Whether an operation may return something else when it runs again."""
    return op.op_def.is_stateful and "Variable" not in op.type and op.type != "VarHandleOp"


def _filled(tensor: Any) -> Optional[np.ndarray]:
    """Content of a tensor that repeats one number, as optimizer state does; else None.

    TensorFlow would fold it into a constant and keep that as long as the session exists.
    """
    while tensor.op.type == "Identity" and not tensor.op.control_inputs:
        tensor = tensor.op.inputs[0]
    if tensor.op.type != "Fill" or tensor.op.control_inputs:
        return None
    dims, value = map(tf.get_static_value, tensor.op.inputs)
    return None if dims is None or value is None else np.broadcast_to(value, dims)


def bytes_at_once(store: Store) -> int:
    """Bytes of variables that TensorFlow may compute at a time."""
    if store.total_resident_bytes < sum(spec.type.max_bytes for spec in store.specs.values()):
        return min(BATCH_BYTES, store.total_resident_bytes // _SHARE)
    return BATCH_BYTES


def _put(contents: Mapping[str, Any], store: Store) -> None:
    for name, content in contents.items():
        write(store, name, np.asarray(content))
