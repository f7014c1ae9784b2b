"""Makes the scaffold of a model whose variables rest in a store: who starts, restores and saves.

What a user's scaffold asks for happens: its Saver is called, its init_fn and init_op run, and what
they do to variables on the wafer ends in the store.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, Optional

import tensorflow as tf

# Private API of TF 2.15: what a Saver without a list saves, and session resources beside variables.
from tensorflow.python.checkpoint import graph_view
from tensorflow.python.ops import resources
from tensorflow.python.ops import variables as tf_variables

from cerebras_tf.errors import ConfigError
from cerebras_tf.estimator import initial_values
from cerebras_tf.estimator.checkpoint_content import named
from cerebras_tf.estimator.partitions import Partitions
from cerebras_tf.estimator.saver import WaferSaver
from cerebras_tf.estimator.stored_variables import StoredVariables, UserSaver
from cerebras_tf.memoryx.store import Store

v1 = tf.compat.v1
_KEYS = v1.GraphKeys


def wafer_scaffold(
    given: Any,
    variables: dict[str, Any],
    store: Store,
    config: Any,
    training: bool,
    phase: Callable[[str], Any],
) -> Any:
    """A scaffold that leaves the wafer's variables out of the session.

    Args:
        given: the scaffold of the model.
        variables: TensorFlow variables on the wafer, by name.
        store: holds them.
        config: the run configuration.
        training: whether the model trains.
        phase: context manager that announces a named phase.

    Raises:
        ConfigError: the scaffold's local_init_op assigns variables that are on the wafer.
    """
    # Private API of TF 2.15: there is no public accessor of what a scaffold was given.
    user_init, user_op = given._user_init_fn, _given(given.init_op, _KEYS.INIT_OP)
    user_saver = _given(given.saver, _KEYS.SAVERS)
    user_ready = [
        _given(given.ready_op, _KEYS.READY_OP),
        _given(given.ready_for_local_init_op, _KEYS.READY_FOR_LOCAL_INIT_OP),
    ]
    local_init = _given(given.local_init_op, _KEYS.LOCAL_INIT_OP)
    user = (user_init, user_op, user_saver, local_init, *user_ready)
    stored = StoredVariables(variables, store) if any(x is not None for x in user) else None
    if stored is not None:
        stored.count_as_initialized()
        _check_local_init(stored, local_init)

    def initialise(session: Any, names: list[str]) -> None:
        initial_values.initialise(session, {name: variables[name] for name in names}, store)

    def init_fn(scaffold: Any, session: Any) -> None:
        with phase("sending weights"):
            if stored is not None and user_op is not None:
                with stored.serving(session):
                    session.run(user_op, given.init_feed_dict)
            initialise(session, [name for name in variables if not store.holds(name)])
        if stored is not None:
            with stored.serving(session):
                if user_init is not None:
                    user_init(scaffold, session)
            stored.adopt_all(session)

    if stored is not None and user_saver is not None:
        saver: Any = UserSaver(_as_saver(user_saver), stored)
    else:
        beside, partitions = _beside(variables), Partitions(variables)
        saver = WaferSaver(store, beside, config, training, initialise, phase, partitions)
        v1.add_to_collection(_KEYS.SAVERS, saver)
    nothing = functools.partial(tf.constant, [], tf.string)
    init_op = _init_of_session(variables)
    ready = user_ready[0] if user_ready[0] is not None else nothing(name="wafer/ready")
    ready_for_local = user_ready[1]
    if ready_for_local is None:
        ready_for_local = nothing(name="wafer/ready_for_local_init")
    _collect(_KEYS.INIT_OP, init_op)
    _collect(_KEYS.READY_OP, ready)
    _collect(_KEYS.READY_FOR_LOCAL_INIT_OP, ready_for_local)
    return v1.train.Scaffold(
        init_op=init_op,
        init_fn=init_fn,
        ready_op=ready,
        ready_for_local_init_op=ready_for_local,
        saver=saver,
        copy_from_scaffold=given,
    )


def _given(value: Any, collection: str) -> Any:
    """What a user gave to a scaffold, or put where scaffolds look for it."""
    found = v1.get_collection(collection)
    return found[0] if value is None and found else value


def _collect(collection: str, item: Any) -> None:
    """Puts what a scaffold would make where others look for it."""
    if not v1.get_collection(collection):
        v1.add_to_collection(collection, item)


def _check_local_init(stored: StoredVariables, local_init: Optional[Any]) -> None:
    assigned = stored.assigned_by(local_init) if isinstance(local_init, tf.Operation) else []
    if assigned:
        raise ConfigError(
            "Scaffold.local_init_op: must leave variables on the wafer alone; it runs after a "
            f"checkpoint is restored. Received: an operation that assigns {named(assigned)}. "
            "Assign them in init_fn, or train with use_cs=False."
        )


def _as_saver(saver: Any) -> Any:
    """A Saver for what a user gave; from objects, as tf.train.Scaffold makes it."""
    if isinstance(saver, tf.train.Checkpoint):
        parts = graph_view.ObjectGraphView(saver).frozen_saveable_objects()
        return v1.train.Saver(var_list=parts, sharded=True)
    saver.build()
    return saver


def _is_stored(item: Any, variables: dict[str, Any]) -> bool:
    return isinstance(item, tf.Variable) and item.op.name in variables


def _beside(variables: dict[str, Any]) -> list[Any]:
    """What checkpoints hold that lives in the session: the global step, tables, strings."""
    found: list[Any] = []
    for item in tf_variables._all_saveable_objects():
        parts = getattr(item, "_variable_list", None) or [item]
        found.extend(part for part in parts if not _is_stored(part, variables))
    return found


def _init_of_session(variables: dict[str, Any]) -> Any:
    """Initializes what lives in the session."""
    own = [v for v in v1.global_variables() if not _is_stored(v, variables)]
    return tf.group(
        v1.variables_initializer(own),
        resources.initialize_resources(resources.shared_resources()),
        v1.get_collection("saved_model_initializers"),
    )
