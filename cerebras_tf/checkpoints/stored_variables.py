"""Lets a user's operations read, assign, save and restore variables that are kept in the store.

A user's init_fn, init_op and Saver run operations in the session, which does not have these
variables. Within `serving`, assignments go to the store, a restore reads the checkpoint variable by
variable, a save writes shards from the store, and nothing remains in the session.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from cerebras_tf.capture.functions import assigns
from cerebras_tf.capture.order import all_before
from cerebras_tf.capture.state import resolve_handle
from cerebras_tf.checkpoints.partitions import Key
from cerebras_tf.checkpoints.reader import (
    check_variables,
    named,
    open_checkpoint,
    read_draws,
    read_variable,
)
from cerebras_tf.checkpoints.saver import SHARD_BYTES, is_restored
from cerebras_tf.checkpoints.writer import Shard, write_checkpoint
from cerebras_tf.errors import CheckpointError, ConfigError
from cerebras_tf.memoryx.store import Store, reading, write
from cerebras_tf.step.session_hook import ancestors, fetched_leaves, with_values
from cerebras_tf.step.tensorflow_step import TensorFlowStep
from cerebras_tf.tf_session import initial_values
from cerebras_tf.tf_session.structures import for_tensorflow

_COPIES = ("Identity", "EnsureShape")


class StoredVariables:
    """The variables of one graph that are kept in a store.

    Attributes:
        restored: path prefix of the checkpoint restored last, which is not written again.
        draws: returns the counts of random ops to add to a checkpoint, see ModelStep.draws_to_save.
    """

    def __init__(self, variables: Mapping[str, Any], store: Store) -> None:
        self.store = store
        self.restored: Optional[str] = None
        self.draws: Callable[[], Mapping[str, np.ndarray]] = dict
        self._variables = dict(variables)
        self._names = {variable.handle.op: name for name, variable in variables.items()}
        self._flags: dict[str, Any] = {}
        self._reads: dict[str, Any] = {}
        self._drops: dict[str, Any] = {}

    def add_transfer_ops(self) -> None:
        """Adds operations that move values out of the session."""
        if self._drops or not self._variables:
            return
        graph = next(iter(self._variables.values())).graph
        is_final = graph.finalized
        # Private API of TensorFlow: hooks run in a finalized graph.
        graph._unsafe_unfinalize()
        with graph.as_default(), tf.name_scope("wafer/stored/"):
            for name, variable in self._variables.items():
                self._flags[name] = variable.is_initialized()
                self._reads[name] = variable.read_value()
                self._drops[name] = tf.raw_ops.DestroyResourceOp(
                    resource=variable.handle, ignore_lookup_error=True
                )
        if is_final:
            graph.finalize()

    def prepare_for(self, operations: Iterable[Any]) -> None:
        """Adds the transfer operations if an operation assigns more than initial values."""
        initializers = set(map(initial_values.assignment, self._variables.values()))
        if any(self.assigns(op) for op in operations if op not in initializers):
            self.add_transfer_ops()

    @contextlib.contextmanager
    def serving(self, session: Any) -> Iterator[None]:
        """Within: `session.run` reads and assigns the variables in the store."""
        run = session.run

        def served(
            fetches: Any, feed_dict: Any = None, options: Any = None, run_metadata: Any = None
        ) -> Any:
            call = _ServedRun(self, run, session.graph, feed_dict)
            if not any(call.concerns(op) for op in call.operations(fetches)):
                return run(fetches, feed_dict, options, run_metadata)
            return with_values(fetches, map(call.value, fetched_leaves(fetches)))

        session.run = served
        try:
            yield
        finally:
            session.run = run

    def count_as_initialized(self) -> None:
        """Makes operations see the variables as initialized, since the store has them.

        Initial values computed from other variables, as a moving average's, are not changed.
        """
        own = {flag.op for flag in self._flags.values()}
        graph = tf.compat.v1.get_default_graph()
        flags = [
            op
            for op in graph.get_operations()
            if op.type == "VarIsInitializedOp" and op not in own and self.touches(op)
        ]
        readers = {op for flag in flags for op in flag.outputs[0].consumers()}
        if not readers:
            return
        is_set = tf.constant(True, name="wafer/stored/is_initialized")
        readers.difference_update(
            op
            for variable in self._variables.values()
            for op in ancestors(initial_values.assignment(variable).inputs[1].op)
        )
        for reader in readers:
            for index, tensor in enumerate(reader.inputs):
                if tensor.op in flags:
                    reader._update_input(index, is_set)  # private API of TensorFlow

    def values(self, run: Any, graph: Any, fetches: list[Any], feed: Any) -> list[Any]:
        """Values of fetches; their assignments go to the store."""
        call = _ServedRun(self, run, graph, feed)
        return call.values(fetches) if self._drops else list(map(call.value, fetches))

    def computed(self, run: Any, graph: Any, fetches: list[Any], feed: Any) -> list[Any]:
        """Values of fetches that TensorFlow computes in one run from the variables in the store."""
        return _ServedRun(self, run, graph, feed).together(fetches)

    def move_to_store(self, run: Any, names: Iterable[str]) -> None:
        """Moves the values of variables from the session to the store, one by one.

        Raises:
            ConfigError: the graph has no transfer operations.
        """
        self._check_transfer_ops(names)
        flags = run({name: self._flags[name] for name in names})
        for name, is_set in flags.items():
            if is_set:
                write(self.store, name, run(self._reads[name]))
                run(self._drops[name])

    def _check_transfer_ops(self, names: Iterable[str]) -> None:
        if self._variables and not self._drops:
            raise ConfigError(
                "session.run: an operation that assigns variables on the wafer must only contain "
                f"assignments. Received: another operation, on {named(list(names))}. Run it in the "
                "init_fn of a Scaffold, or train with use_cs=False."
            )

    @contextlib.contextmanager
    def in_session(self, run: Any, names: Iterable[str]) -> Iterator[None]:
        """Within: the session has the values of variables.

        Raises:
            ConfigError: the graph has no transfer operations.
        """
        names = list(names)
        self._check_transfer_ops(names)
        try:
            for name in filter(self.store.has_value, names):
                assign = initial_values.assignment(self._variables[name])
                run(assign, {assign.inputs[1]: self.content(name)})
            yield
        finally:
            run([self._drops[name] for name in names])

    def move_all_to_store(self, session: Any) -> None:
        """Moves all values that remain in the session to the store."""
        self.move_to_store(session.run, self._flags)

    def content(self, name: str) -> np.ndarray:
        """A copy of a variable in TensorFlow's dtype."""
        with reading(self.store, name) as array:
            content = for_tensorflow(np.array(array), self.store.specs[name].type.dtype)
        return content.astype(self._variables[name].dtype.as_numpy_dtype, copy=False)

    def missing(self) -> list[str]:
        """Names of variables without a value."""
        return [name for name in self.store.specs if not self.store.has_value(name)]

    def touches(self, op: Any) -> bool:
        """Whether an operation reads or assigns one of the variables."""
        return any(tensor.op in self._names for tensor in op.inputs)

    def assigns(self, op: Any) -> bool:
        """Whether an operation, or a function it calls, assigns one of the variables."""
        return bool(self._inputs(op)) and assigns(op)

    def assigned_by(self, op: Any) -> list[str]:
        """Names of the variables that an operation and its ancestors assign."""
        found = [name for o in ancestors(op) if self.assigns(o) for name in self._inputs(o)]
        return list(dict.fromkeys(found))

    def touched_by(self, op: Any) -> list[str]:
        """Names of the variables that an operation and its ancestors read or assign."""
        return list(dict.fromkeys(name for o in ancestors(op) for name in self._inputs(o)))

    def _inputs(self, op: Any) -> list[str]:
        """Names of the variables whose handles are inputs of an operation."""
        handles = [resolve_handle(t).op for t in op.inputs if t.dtype == tf.resource]
        return [self._names[handle] for handle in handles if handle in self._names]

    def has_plain_reads(self, operations: Iterable[Any]) -> bool:
        """Whether those of the operations that use variables read them whole, unconditionally."""
        return all(
            op.type == "ReadVariableOp" and not op.control_inputs
            for op in operations
            if any(map(self.store.has_value, self._inputs(op)))
        )

    def read_by(self, tensor: Any) -> Optional[str]:
        """Name of the variable whose content a tensor is."""
        op = _source(tensor).op
        return self._names.get(op.inputs[0].op) if op.type == "ReadVariableOp" else None

    def put(self, path: str, names: Mapping[str, str]) -> None:
        """Loads variables from a checkpoint, one by one; `names` maps its names to the model's.

        Raises:
            CheckpointError: it is unreadable, lacks variables, or has other shapes.
        """
        reader = open_checkpoint(path)
        shapes = {key: self.store.specs[name].type.static_shape for key, name in names.items()}
        check_variables(path, shapes, reader.get_variable_to_shape_map())
        for key, name in names.items():
            write(self.store, name, read_variable(reader, path, key))


class _ServedRun:
    """One call of `session.run` that concerns stored variables."""

    def __init__(self, stored: StoredVariables, run: Any, graph: Any, feed: Any) -> None:
        self._stored, self._run, self._graph = stored, run, graph
        self._feed = dict(feed or {})

    def element(self, fetch: Any) -> Any:
        return self._graph.as_graph_element(fetch, allow_tensor=True, allow_operation=True)

    def operations(self, fetches: Any) -> list[Any]:
        elements = map(self.element, fetched_leaves(fetches))
        return [e if isinstance(e, tf.Operation) else e.op for e in elements]

    def concerns(self, op: Any) -> bool:
        return any(self._stored.touches(other) for other in ancestors(op))

    def values(self, fetches: list[Any]) -> list[Any]:
        """Values of fetches. All that assign run together, as they may share inputs."""
        operations = dict(zip(range(len(fetches)), self.operations(fetches)))
        assigning = [i for i, op in operations.items() if self._stored.assigned_by(op)]
        done: dict[int, Any] = {}
        if len(assigning) > 1:
            elements = [self.element(fetches[i]) for i in assigning]
            results = self._run_in_session(elements, [operations[i] for i in assigning])
            done = dict(zip(assigning, results))
        return [done[i] if i in done else self.value(f) for i, f in enumerate(fetches)]

    def together(self, fetches: list[Any]) -> list[Any]:
        """Values of fetches that assign nothing, in one run."""
        elements, operations = list(map(self.element, fetches)), self.operations(fetches)
        before = all_before(operations, fed=self._feed)
        if not self._stored.has_plain_reads(before):
            self._stored.add_transfer_ops()
            return self._run_in_session(elements, operations)
        feed: dict[Any, Any] = {}
        for op in operations:
            feed.update(self._fed(op))
        results: list[Any] = self._run(elements, feed)
        return results

    def value(self, fetch: Any) -> Any:
        element = self.element(fetch)
        if self._is_fed(element):
            return self._run(element, self._feed)
        if isinstance(element, tf.Operation):
            if self._saves(element):
                self._save(element)
            else:
                self._assign(element)
            return None
        if self._saves(element.op):
            return self._save(element.op)
        names = self._stored.assigned_by(element.op)
        if element.op.type == "VarIsInitializedOp" and self._stored.touches(element.op):
            (variable,) = self._stored.touched_by(element.op)
            return np.bool_(self._stored.store.has_value(variable))
        name = self._stored.read_by(element)
        if name is not None and names:  # the result of an assignment
            for op in _source(element).op.control_inputs:
                self._assign(op)
            return self._stored.content(name)
        if names:
            return self._run_in_session([element], [element.op])[0]
        if name is not None:
            return self._stored.content(name)
        return self._run(element, self._fed(element.op))

    def _assign(self, group: Any) -> None:
        """Runs the operations of a group.

        If one is not a plain assignment, all that assign run together, as they may depend on the
        same tensors.
        """
        parts = {op: self._stored.assigned_by(op) for op in _parts(group)}
        sources = {op: _source(op.inputs[1]) for op in parts if self._is_plain(op)}
        in_session = any(names and op not in sources for op, names in parts.items())
        together: list[Any] = []
        restores: dict[Any, dict[str, str]] = {}
        values: dict[str, Any] = {}
        for op, names in parts.items():
            source = sources.get(op)
            if not names:
                self._run(op, self._fed(op))
            elif source is not None and source.op.type == "RestoreV2" and not self._is_fed(source):
                restores.setdefault(source.op, {})[self._entry(source)] = names[0]
            elif in_session:
                together.append(op)
            else:
                values[names[0]] = op.inputs[1]
        if together:
            self._run_in_session(together, together)
        initial_values.put_values(self._value, values, self._stored.store)
        for restore, keys in restores.items():
            self._stored.put(self._text(restore.inputs[0]), keys)

    def _is_plain(self, op: Any) -> bool:
        """Whether an operation is one assignment, of a value that depends on feedable variables."""
        before = [other for other in ancestors(op) if other is not op]
        return (
            op.type == "AssignVariableOp"
            and not any(map(self._stored.assigns, before))
            and self._stored.has_plain_reads(before)
        )

    def _run_in_session(self, fetches: list[Any], operations: list[Any]) -> list[Any]:
        """Runs assignments that are not plain, such as an optimizer's update, together."""
        touched = [name for op in operations for name in self._stored.touched_by(op)]
        assigned = [name for op in operations for name in self._stored.assigned_by(op)]
        feed: dict[Any, Any] = {}
        for op in operations:
            feed.update(self._fed(op, reads=False))
        with self._stored.in_session(self._run, dict.fromkeys(touched)):
            results: list[Any] = self._run(fetches, feed)
            self._stored.move_to_store(self._run, dict.fromkeys(assigned))
        return results

    def _value(self, tensors: dict[str, Any]) -> Any:
        feed: dict[Any, Any] = {}
        for tensor in tensors.values():
            feed.update(self._fed(tensor.op))
        return self._run(tensors, feed)

    def _is_fed(self, tensor: Any) -> bool:
        return any(self.element(key) is tensor for key in self._feed)

    def _fed(self, op: Any, reads: bool = True) -> dict[Any, Any]:
        """The feed_dict of an operation, with stored variables and restored tensors.

        Without it, a restore of all variables would run for one of them.

        Args:
            reads: whether to feed reads of variables, too.
        """
        fed: dict[Any, Any] = {}
        inputs = {t.ref(): t for other in ancestors(op) for t in other.inputs}
        if op.type == "ReadVariableOp":  # as the value of an assignment
            inputs[op.outputs[0].ref()] = op.outputs[0]
        for tensor in inputs.values():
            if self._is_fed(tensor):
                continue
            if tensor.op.type == "RestoreV2":
                path, key = self._text(tensor.op.inputs[0]), self._entry(tensor)
                reader = open_checkpoint(path)
                check_variables(path, {key: ()}, {key: ()} if reader.has_tensor(key) else {})
                fed[tensor] = read_variable(reader, path, key)
            elif reads and tensor.op.type == "ReadVariableOp" and not tensor.op.control_inputs:
                name = self._stored.read_by(tensor)
                if name is not None and self._stored.store.has_value(name):
                    fed[tensor] = self._stored.content(name)
        return {**fed, **self._feed}

    def _entry(self, tensor: Any) -> str:
        """Name in the checkpoint of an output of RestoreV2."""
        names, slices = (tf.get_static_value(t) for t in tensor.op.inputs[1:3])
        if names is None or slices is None or slices[tensor.value_index]:
            raise CheckpointError(
                "Scaffold.saver: variables on the wafer must be restored completely, by constant "
                f"names. Received: {tensor.op.name!r}. Exclude partitioned variables, or train "
                "with use_cs=False."
            )
        return str(names[tensor.value_index].decode())

    def _text(self, tensor: Any) -> str:
        return str(tf.compat.as_str(np.asarray(self._run(tensor, self._feed)).item()))

    def _saves(self, op: Any) -> list[Any]:
        """SaveV2 operations among an operation's ancestors that write stored variables."""
        return [
            other
            for other in ancestors(op)
            if other.type == "SaveV2"
            and any(self._stored.read_by(tensor) is not None for tensor in other.inputs[3:])
        ]

    def _save(self, op: Any) -> str:
        """Writes a checkpoint; returns its prefix."""
        before = ancestors(op)
        merges = [other for other in before if other.type == "MergeV2Checkpoints"]
        saves = [other for other in before if other.type == "SaveV2"]
        path = self._text(merges[0].inputs[1] if merges else saves[0].inputs[0])
        if not is_restored(path, self._stored.restored):
            write_checkpoint(path, self._shards(saves))
        return path

    def _shards(self, saves: list[Any]) -> Iterator[Shard]:
        store = self._stored.store
        most = min(SHARD_BYTES, initial_values.bytes_at_once(store))
        read = [self._stored.read_by(tensor) for save in saves for tensor in save.inputs[3:]]
        store.set_access_order([[name] for name in read if name is not None])
        shard: dict[Key, np.ndarray] = {}
        shard.update(self._stored.draws().items())
        for save in saves:
            names, slices = (tf.get_static_value(t) for t in save.inputs[1:3])
            for name, part, tensor in zip(names, slices, save.inputs[3:]):
                if part:
                    raise CheckpointError(
                        "Scaffold.saver: variables on the wafer must be saved completely. "
                        f"Received: a slice of {name.decode()!r}. Exclude partitioned variables, "
                        "or train with use_cs=False."
                    )
                shard[name.decode()] = np.asarray(self.value(tensor))
                if sum(array.nbytes for array in shard.values()) > most:
                    yield shard
                    shard = {}
        if shard:
            yield shard


class UserSaver:
    """A user's Saver for variables in the store.

    Args:
        connect: called with a session after a restore.
        training: the step, in training: a restore sets its counts of random ops.
    """

    def __init__(
        self,
        saver: Any,
        stored: StoredVariables,
        connect: Callable[[Any], None] = lambda session: None,
        training: Optional[TensorFlowStep] = None,
    ) -> None:
        self._saver = saver
        self._connect = connect
        self._stored = stored
        self._step = training
        self._has_warned_of_draws = False
        if training is not None:
            stored.draws = training.draws_to_save

    def __getattr__(self, name: str) -> Any:
        return getattr(self._saver, name)

    def save(self, sess: Any, *args: Any, **kwargs: Any) -> Any:
        """See tf.train.Saver.save. A checkpoint that was just restored is not written again."""
        with self._stored.serving(sess):
            path = self._saver.save(sess, *args, **kwargs)
        lost = set(self._stored.draws()).difference(_saved_draws(path))
        if lost and not self._has_warned_of_draws:
            self._has_warned_of_draws = True
            tf.compat.v1.logging.warning(
                "Scaffold.saver: %s does not contain the state of random operations, so a run "
                "that resumes from it repeats random numbers. Let the saver write a TensorFlow "
                "checkpoint of all variables, or remove it.",
                path,
            )
        return path

    def restore(self, sess: Any, save_path: str) -> None:
        """See tf.train.Saver.restore.

        Raises:
            CheckpointError: the checkpoint does not fit, or lacks variables.
        """
        with self._stored.serving(sess):
            self._saver.restore(sess, save_path)
        self._stored.move_all_to_store(sess)
        self._stored.restored = save_path
        missing = self._stored.missing()
        if missing:
            raise CheckpointError(
                f"Scaffold.saver: must restore every variable of the model from {save_path}. "
                f"Received: a saver without {named(missing)}. Add them to its var_list."
            )
        if self._step is not None:
            self._step.restore_draws(_saved_draws(save_path))
        self._connect(sess)


def _saved_draws(path: Optional[str]) -> dict[str, int]:
    """Counts of random ops that a user's saver has written; {} if it wrote no checkpoint."""
    if path is None:
        return {}
    try:
        reader = open_checkpoint(path)
    except CheckpointError:
        return {}
    return read_draws(reader, path)


def _parts(op: Any) -> list[Any]:
    """The operations of a group, also of nested ones."""
    if op.type != "NoOp":
        return [op]
    return list(dict.fromkeys(part for other in op.control_inputs for part in _parts(other)))


def _source(tensor: Any) -> Any:
    """The tensor that this one is a copy of."""
    while tensor.op.type in _COPIES and not tensor.op.control_inputs:
        tensor = tensor.op.inputs[0]
    return tensor
