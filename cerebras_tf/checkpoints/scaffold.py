"""Makes the scaffold of a model whose variables rest in a store: who starts, restores and saves.

What a user's scaffold asks for happens: its Saver is called, its init_fn and init_op run, and what
they do to variables on the wafer ends in the store.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Optional

import tensorflow as tf

# Private API of TF 2.15: what a Saver without a list saves, and session resources beside variables.
from tensorflow.python.checkpoint import graph_view
from tensorflow.python.ops import resources
from tensorflow.python.ops import variables as tf_variables

from cerebras_tf.checkpoints.content import named
from cerebras_tf.checkpoints.partitions import Partitions
from cerebras_tf.checkpoints.saver import WaferSaver
from cerebras_tf.checkpoints.stored_variables import StoredVariables
from cerebras_tf.checkpoints.user_saver import UserSaver
from cerebras_tf.errors import ConfigError
from cerebras_tf.step.tensorflow_step import TensorFlowStep
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
    """Makes a model's scaffold leave the wafer's variables out of the session.

    It stays the same object: a user's hooks and subclass may hold on to it.

    Args:
        given: the scaffold of the model.
        variables: TensorFlow variables on the wafer, by name.
        stored: serves what a user's operations do to them.
        config: the run configuration.
        phase: context manager that announces a named phase.
        connect: told of the session once variables have values, before hooks see it.
        training: the step, in training: checkpoints hold how often it has drawn.
        lender: the step of a training around this evaluation, see model_graph.build.

    Raises:
        ConfigError: the scaffold's local_init_op assigns variables that are on the wafer.
    """
    asked = _Asked.of(given)
    if asked.anything:
        stored.prepare_adoption()
        stored.count_as_initialized()
        _check_local_init(stored, asked.local_init_op)

    def initialise(session: Any, names: list[str]) -> None:
        initial_values.initialise(session, {name: variables[name] for name in names}, stored.store)

    known = _initializers_of_session(variables)

    def init_fn(scaffold: Any, session: Any) -> None:
        # A warm start replaces initializers; hooks make variables of their own.
        session.run([op for op in _initializers_of_session(variables) if op not in known])
        with phase("sending weights"):
            asked.run_init_op(stored, session, given.init_feed_dict)
            initialise(session, stored.missing())
        asked.run_init_fn(stored, scaffold, session)
        store = stored.store
        store.broadcast(filter(store.has_value, store.specs), 0)
        connect(session)

    if asked.saver is not None:
        _check_one_wafer(stored)
        saver: Any = UserSaver(_as_saver(asked.saver), stored, connect, training)
    else:
        beside, parts = functools.partial(_beside, variables), Partitions(variables)
        saver = WaferSaver(
            stored.store, beside, config, initialise, connect, phase, parts, training, lender
        )
        v1.add_to_collection(_KEYS.SAVERS, saver)
    _replace_parts(given, asked, _init_of_session(known), init_fn, saver)
    return given


@dataclass(frozen=True)
class _Asked:
    """What a user gave to a scaffold, or put into the graph where scaffolds look for it."""

    init_fn: Any
    init_op: Any
    saver: Any
    ready_op: Any
    ready_for_local_init_op: Any
    local_init_op: Any

    @classmethod
    def of(cls, given: Any) -> _Asked:
        return cls(
            # Private API of TF 2.15: there is no public accessor of a scaffold's init_fn.
            init_fn=given._user_init_fn,
            init_op=_given(given.init_op, _KEYS.INIT_OP),
            saver=_given(given.saver, _KEYS.SAVERS),
            ready_op=_given(given.ready_op, _KEYS.READY_OP),
            ready_for_local_init_op=_given(
                given.ready_for_local_init_op, _KEYS.READY_FOR_LOCAL_INIT_OP
            ),
            local_init_op=_given(given.local_init_op, _KEYS.LOCAL_INIT_OP),
        )

    @property
    def anything(self) -> bool:
        return any(getattr(self, field.name) is not None for field in fields(self))

    def run_init_op(self, stored: StoredVariables, session: Any, feed: Any) -> None:
        if self.init_op is not None:
            with stored.serving(session):
                session.run(self.init_op, feed)

    def run_init_fn(self, stored: StoredVariables, scaffold: Any, session: Any) -> None:
        if self.init_fn is not None:
            with stored.serving(session):
                self.init_fn(scaffold, session)
        if self.anything:
            stored.adopt_all(session)


def _replace_parts(given: Any, asked: _Asked, init_op: Any, init_fn: Any, saver: Any) -> None:
    """Makes anew what a scaffold holds; a summary op and local initialization stay."""
    for_local = _or_ready(asked.ready_for_local_init_op, "wafer/ready_for_local_init")
    v1.train.Scaffold.__init__(
        given,
        init_op=_collected(_KEYS.INIT_OP, init_op),
        init_fn=init_fn,
        ready_op=_collected(_KEYS.READY_OP, _or_ready(asked.ready_op, "wafer/ready")),
        ready_for_local_init_op=_collected(_KEYS.READY_FOR_LOCAL_INIT_OP, for_local),
        saver=saver,
        copy_from_scaffold=given,
    )


def _or_ready(op: Any, name: str) -> Any:
    """A user's ready op, or one that finds nothing missing: the store is filled before."""
    return tf.constant([], tf.string, name=name) if op is None else op


def _given(value: Any, collection: str) -> Any:
    found = v1.get_collection(collection)
    return found[0] if value is None and found else value


def _collected(collection: str, item: Any) -> Any:
    """The item, put where others look for what a scaffold makes."""
    if not v1.get_collection(collection):
        v1.add_to_collection(collection, item)
    return item


def _check_local_init(stored: StoredVariables, local_init: Optional[Any]) -> None:
    assigned = stored.assigned_by(local_init) if isinstance(local_init, tf.Operation) else []
    if assigned:
        raise ConfigError(
            "Scaffold.local_init_op: must leave variables on the wafer alone; it runs after a "
            f"checkpoint is restored. Received: an operation that assigns {named(assigned)}. "
            "Assign them in init_fn, or train with use_cs=False."
        )


def _check_one_wafer(stored: StoredVariables) -> None:
    if stored.store.is_shared:
        raise ConfigError(
            "Scaffold.saver: must be left out where several wafers train, which save together. "
            "Received: a Saver. Leave it out, or train with one wafer (num_csx 1)."
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
        parts = getattr(item, "_variable_list", None) or [item]  # as in capture/variables.py
        found.extend(part for part in parts if not _is_stored(part, variables))
    return found


def _initializers_of_session(variables: dict[str, Any]) -> list[Any]:
    """Initializers of the variables that live in the session, as they are now."""
    return [v.initializer for v in v1.global_variables() if not _is_stored(v, variables)]


def _init_of_session(initializers: list[Any]) -> Any:
    """Initializes what lives in the session."""
    return tf.group(
        initializers,
        resources.initialize_resources(resources.shared_resources()),
        v1.get_collection("saved_model_initializers"),
    )
