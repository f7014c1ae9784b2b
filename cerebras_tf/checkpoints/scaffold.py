"""Makes the scaffold of a model whose variables are in a store: initialization, restore and save.

The Saver, init_fn and init_op of a user's scaffold are called, and their changes of variables on
the wafer go to the store.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Optional

import tensorflow as tf

from cerebras_tf.checkpoints.partitions import Partitions
from cerebras_tf.checkpoints.reader import named
from cerebras_tf.checkpoints.saver import WaferSaver
from cerebras_tf.checkpoints.stored_variables import StoredVariables, UserSaver
from cerebras_tf.errors import ConfigError
from cerebras_tf.step.tensorflow_step import TensorFlowStep
from cerebras_tf.tf_compat.internals import graph_view, resources, tf_variables
from cerebras_tf.tf_session import initial_values

v1 = tf.compat.v1
_KEYS = v1.GraphKeys


def wafer_scaffold(
    given: Any,
    variables: dict[str, Any],
    stored: StoredVariables,
    config: Any,
    phase: Callable[[str], Any],
    connect: Callable[[Any], None],
    training: Optional[TensorFlowStep] = None,
    lender: Optional[TensorFlowStep] = None,
) -> Any:
    """Makes a model's scaffold keep the wafer's variables out of the session.

    It is changed in place, as the user's hooks or a subclass may refer to it.

    Args:
        variables: TensorFlow variables on the wafer, by name.
        phase: context manager that reports a named phase.
        connect: called with the session when variables have values, before hooks are.
        training: the step, in training: checkpoints contain how often its random ops have drawn.
        lender: the step of the enclosing training, see model_graph.build.

    Raises:
        ConfigError: the scaffold's local_init_op assigns variables that are on the wafer.
    """
    user = _UserParts.of(given)
    if user.has_any:
        stored.add_transfer_ops()
        stored.count_as_initialized()
        _check_local_init(stored, user.local_init_op)

    def initialize(session: Any, names: list[str]) -> None:
        initial_values.initialize(session, {name: variables[name] for name in names}, stored.store)

    known = _initializers_of_session(variables)

    def init_fn(scaffold: Any, session: Any) -> None:
        # A warm start replaces initializers, and hooks create variables.
        session.run([op for op in _initializers_of_session(variables) if op not in known])
        with phase("sending weights"):
            user.run_init_op(stored, session, given.init_feed_dict)
            initialize(session, stored.missing())
        user.run_init_fn(stored, scaffold, session)
        store = stored.store
        store.broadcast(filter(store.has_value, store.specs), 0)
        connect(session)

    if user.saver is not None:
        _check_one_wafer(stored)
        saver: Any = UserSaver(_as_saver(user.saver), stored, connect, training)
    else:
        objects, parts = functools.partial(_session_objects, variables), Partitions(variables)
        saver = WaferSaver(
            stored.store, objects, config, initialize, connect, phase, parts, training, lender
        )
        v1.add_to_collection(_KEYS.SAVERS, saver)
    _replace_parts(given, user, _init_of_session(known), init_fn, saver)
    return given


@dataclass(frozen=True)
class _UserParts:
    """Parts of a scaffold that the user has set, or has put into the collections of the graph."""

    init_fn: Any
    init_op: Any
    saver: Any
    ready_op: Any
    ready_for_local_init_op: Any
    local_init_op: Any

    @classmethod
    def of(cls, given: Any) -> _UserParts:
        return cls(
            # Private API of TensorFlow: a scaffold has no public init_fn.
            init_fn=given._user_init_fn,
            init_op=_user_part(given.init_op, _KEYS.INIT_OP),
            saver=_user_part(given.saver, _KEYS.SAVERS),
            ready_op=_user_part(given.ready_op, _KEYS.READY_OP),
            ready_for_local_init_op=_user_part(
                given.ready_for_local_init_op, _KEYS.READY_FOR_LOCAL_INIT_OP
            ),
            local_init_op=_user_part(given.local_init_op, _KEYS.LOCAL_INIT_OP),
        )

    @property
    def has_any(self) -> bool:
        return any(getattr(self, field.name) is not None for field in fields(self))

    def run_init_op(self, stored: StoredVariables, session: Any, feed: Any) -> None:
        if self.init_op is not None:
            with stored.serving(session):
                session.run(self.init_op, feed)

    def run_init_fn(self, stored: StoredVariables, scaffold: Any, session: Any) -> None:
        if self.init_fn is not None:
            with stored.serving(session):
                self.init_fn(scaffold, session)
        if self.has_any:
            stored.move_all_to_store(session)


def _replace_parts(given: Any, user: _UserParts, init_op: Any, init_fn: Any, saver: Any) -> None:
    """Replaces parts of a scaffold; summary op and local initialization stay."""
    for_local = _or_ready(user.ready_for_local_init_op, "wafer/ready_for_local_init")
    v1.train.Scaffold.__init__(
        given,
        init_op=_collected(_KEYS.INIT_OP, init_op),
        init_fn=init_fn,
        ready_op=_collected(_KEYS.READY_OP, _or_ready(user.ready_op, "wafer/ready")),
        ready_for_local_init_op=_collected(_KEYS.READY_FOR_LOCAL_INIT_OP, for_local),
        saver=saver,
        copy_from_scaffold=given,
    )


def _or_ready(op: Any, name: str) -> Any:
    """A user's ready op, or one that reports nothing missing: the store has all values."""
    return tf.constant([], tf.string, name=name) if op is None else op


def _user_part(value: Any, collection: str) -> Any:
    found = v1.get_collection(collection)
    return found[0] if value is None and found else value


def _collected(collection: str, item: Any) -> Any:
    """The item, added to its collection if that is empty."""
    if not v1.get_collection(collection):
        v1.add_to_collection(collection, item)
    return item


def _check_local_init(stored: StoredVariables, local_init: Optional[Any]) -> None:
    assigned = stored.assigned_by(local_init) if isinstance(local_init, tf.Operation) else []
    if assigned:
        raise ConfigError(
            "Scaffold.local_init_op: must not assign variables on the wafer, because it runs "
            "after a checkpoint is restored. Received: an operation that assigns "
            f"{named(assigned)}. Assign them in init_fn, or train with use_cs=False."
        )


def _check_one_wafer(stored: StoredVariables) -> None:
    if stored.store.is_shared:
        raise ConfigError(
            "Scaffold.saver: must not be set with several wafers. Received: a Saver. Remove it, "
            "or train with num_csx=1."
        )


def _as_saver(saver: Any) -> Any:
    """The user's Saver; for a tf.train.Checkpoint, the one that tf.train.Scaffold makes."""
    if isinstance(saver, tf.train.Checkpoint):
        parts = graph_view.ObjectGraphView(saver).frozen_saveable_objects()
        return v1.train.Saver(var_list=parts, sharded=True)
    saver.build()
    return saver


def _is_stored(item: Any, variables: dict[str, Any]) -> bool:
    return isinstance(item, tf.Variable) and item.op.name in variables


def _session_objects(variables: dict[str, Any]) -> list[Any]:
    """Saved objects of the session: the global step, tables, strings."""
    found: list[Any] = []
    for item in tf_variables._all_saveable_objects():
        parts = getattr(item, "_variable_list", None) or [item]  # as in capture/variables.py
        found.extend(part for part in parts if not _is_stored(part, variables))
    return found


def _initializers_of_session(variables: dict[str, Any]) -> list[Any]:
    """Current initializers of the variables of the session."""
    return [v.initializer for v in v1.global_variables() if not _is_stored(v, variables)]


def _init_of_session(initializers: list[Any]) -> Any:
    """An operation that initializes the objects of the session."""
    return tf.group(
        initializers,
        resources.initialize_resources(resources.shared_resources()),
        v1.get_collection("saved_model_initializers"),
    )
