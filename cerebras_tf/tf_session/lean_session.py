"""A session that copies only the operations it has run.

TensorFlow's session copies the whole graph at its first run. For a GPT's training graph, whose
steps the wafer runs, that is 2 MB per layer, and temporarily as much again for every new fetch.
"""

from __future__ import annotations

import threading
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tensorflow as tf

from cerebras_tf.capture.order import all_before
from cerebras_tf.capture.replacement import Replacement
from cerebras_tf.tf_compat.internals import client_session, session_manager

# Graphs whose sessions are lean.
_GRAPHS: weakref.WeakSet[Any] = weakref.WeakSet()


class LeanSession(tf.compat.v1.Session):
    """A session of a graph that runs a second graph, to which it copies operations when needed.

    Arguments and methods are those of tf.compat.v1.Session; `graph` is the first graph.
    """

    def __init__(self, target: str = "", graph: Any = None, config: Any = None) -> None:
        self._copy = tf.Graph()
        self._growing = threading.RLock()
        self._names: set[str] = set()
        self._functions: set[str] = set()
        super().__init__(target, self._copy, config)
        self._graph = graph or tf.compat.v1.get_default_graph()

    def separate(self) -> LeanSession:
        """Another session of the same graph, without the state of this one."""
        return LeanSession(graph=self._graph, config=self._config)

    def make_callable(
        self, fetches: Any, feed_list: Any = None, accept_options: bool = False
    ) -> Callable[..., Any]:
        """A function that runs fetches; see tf.compat.v1.Session.make_callable."""

        def run(*values: Any, **options: Any) -> Any:
            return self.run(fetches, dict(zip(feed_list or (), values)), **options)

        return run

    def partial_run_setup(self, fetches: Any, feeds: Any = None) -> Any:
        """Prepares a run in parts; see tf.compat.v1.Session.partial_run_setup."""
        items = [*tf.nest.flatten(fetches), *tf.nest.flatten(feeds or [])]
        elements = [self._graph.as_graph_element(item) for item in items]
        copies = dict(zip(map(id, items), self._copies(elements)))

        def copy_of(item: Any) -> Any:
            return copies[id(item)]

        graph, self._graph = self._graph, self._copy
        try:
            return super().partial_run_setup(
                tf.nest.map_structure(copy_of, fetches), tf.nest.map_structure(copy_of, feeds or [])
            )
        finally:
            self._graph = graph

    def _make_callable_from_options(self, callable_options: Any) -> Any:
        names = (*callable_options.feed, *callable_options.fetch, *callable_options.target)
        self._copies([self._graph.as_graph_element(name) for name in names])
        return super()._make_callable_from_options(callable_options)

    def _do_run(
        self, handle: Any, targets: Any, fetches: Any, feeds: Any, options: Any, metadata: Any
    ) -> Any:
        fed = [reference.deref() for reference in feeds]
        copies = iter(self._copies([*targets, *fetches, *fed]))
        targets = [next(copies) for _ in targets]
        fetches = [next(copies) for _ in fetches]
        feeds = {next(copies).ref(): value for value in feeds.values()}
        return super()._do_run(handle, targets, fetches, feeds, options, metadata)

    def _extend_graph(self) -> None:
        with self._growing:  # another thread must not run a part of the added operations
            super()._extend_graph()

    def _copies(self, elements: list[Any]) -> list[Any]:
        """Copies of tensors and operations in the second graph."""
        with self._growing:
            self._grow([e if isinstance(e, tf.Operation) else e.op for e in elements])
        return [self._copy.as_graph_element(element.name) for element in elements]

    def _grow(self, roots: Iterable[Any]) -> None:
        """Copies operations and their ancestors that have no copy yet."""
        fresh = all_before(roots, excluded=lambda op: op.name in self._names)
        if not fresh:
            return
        copy, added = self._copy, {op.name for op in fresh}
        definition = tf.compat.v1.GraphDef(versions=self._graph.graph_def_versions)
        known: dict[str, Any] = {}
        waiting: list[tuple[str, list[Any]]] = []
        for op in fresh:
            node = definition.node.add()
            node.CopyFrom(op.node_def)
            node.attr.pop("_class", None)  # colocated operations may have no copy
            inputs = [tensor.name for tensor in op.inputs if tensor.op.name not in added]
            known.update((name, copy.get_tensor_by_name(name)) for name in inputs)
            before = [other.name for other in op.control_inputs if other.name not in added]
            if before:
                waiting.append((op.name, [copy.get_operation_by_name(name) for name in before]))
            for name in before:
                node.input.remove(f"^{name}")
        self._add_functions(_called(definition.node))
        with copy.as_default():
            tf.import_graph_def(definition, known, name="")
        for name, others in waiting:
            # Private API of TensorFlow: an import cannot map control inputs.
            copy.get_operation_by_name(name)._add_control_inputs(others)
        self._names |= added

    def _add_functions(self, names: Iterable[str]) -> None:
        """Copies functions, and functions that they call, that have no copy yet."""
        functions, waiting = self._graph._functions, list(names)  # private API of TensorFlow
        while waiting:
            name = waiting.pop()
            if name in functions and name not in self._functions:
                self._functions.add(name)
                self._copy._add_function(functions[name])
                waiting.extend(_called(functions[name].definition.node_def))


def _called(nodes: Iterable[Any]) -> Iterator[str]:
    """Names of the functions that nodes call."""
    for node in nodes:
        for value in node.attr.values():
            called = [value.func] if value.HasField("func") else value.list.func
            yield from (function.name for function in called)


def with_pruned_graphs(config: Any) -> Any:
    """A copy of a session's configuration by which it does not copy operations that never run."""
    found = tf.compat.v1.ConfigProto()
    found.CopyFrom(config)
    found.graph_options.place_pruned_graph = True
    return found


def make_lean(graph: Any) -> None:
    """Lets tf.estimator create lean sessions of a graph, within `lean_sessions()`."""
    _GRAPHS.add(graph)


def _session(target: str = "", graph: Any = None, config: Any = None) -> Any:
    kind = LeanSession if graph in _GRAPHS else client_session.Session
    return kind(target, graph=graph, config=config)


# Within `lean_sessions()`: tf.estimator creates lean sessions of the graphs of `make_lean`.
lean_sessions = Replacement(
    session_manager, "session", types.SimpleNamespace(Session=_session)
).active
