"""A session that holds of its graph only what was run in it.

TensorFlow's session copies the whole graph at its first run: of a GPT's training graph, whose steps
the wafer runs, 2 MB a layer, and as much again for a moment whenever something new is fetched.
"""

from __future__ import annotations

import threading
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tensorflow as tf

# Private API of TF 2.15: tf.estimator has no public way to be given a session, and a session none
# to be given operations of another graph than that whose nodes it keeps.
from tensorflow.python.client import session as client_session
from tensorflow.python.training import session_manager

from cerebras_tf.capture.order import all_before

# Graphs whose sessions are lean.
_GRAPHS: weakref.WeakSet[Any] = weakref.WeakSet()


class LeanSession(tf.compat.v1.Session):
    """A session of a graph, run on a second graph that gets operations as they are asked for.

    Args:
        target: as TensorFlow's.
        graph: what fetches name; `session.graph`.
        config: as TensorFlow's.
    """

    def __init__(self, target: str = "", graph: Any = None, config: Any = None) -> None:
        self._held = tf.Graph()
        self._growing = threading.RLock()
        self._names: set[str] = set()
        self._functions: set[str] = set()
        super().__init__(target, self._held, config)
        self._graph = graph or tf.compat.v1.get_default_graph()

    def apart(self) -> LeanSession:
        """Another session of the same graph, which has nothing of this one's state."""
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
        held = dict(zip(map(id, items), self._twins(elements)))

        def twin(item: Any) -> Any:
            return held[id(item)]

        graph, self._graph = self._graph, self._held
        try:
            return super().partial_run_setup(
                tf.nest.map_structure(twin, fetches), tf.nest.map_structure(twin, feeds or [])
            )
        finally:
            self._graph = graph

    def _make_callable_from_options(self, callable_options: Any) -> Any:
        names = (*callable_options.feed, *callable_options.fetch, *callable_options.target)
        self._twins([self._graph.as_graph_element(name) for name in names])
        return super()._make_callable_from_options(callable_options)

    def _do_run(
        self, handle: Any, targets: Any, fetches: Any, feeds: Any, options: Any, metadata: Any
    ) -> Any:
        fed = [reference.deref() for reference in feeds]
        twins = iter(self._twins([*targets, *fetches, *fed]))
        targets = [next(twins) for _ in targets]
        fetches = [next(twins) for _ in fetches]
        feeds = {next(twins).ref(): value for value in feeds.values()}
        return super()._do_run(handle, targets, fetches, feeds, options, metadata)

    def _extend_graph(self) -> None:
        with self._growing:  # another thread's run must not find half of what is being added
            super()._extend_graph()

    def _twins(self, elements: list[Any]) -> list[Any]:
        """What stands for tensors and operations in the graph that is held."""
        with self._growing:
            self._grow([e if isinstance(e, tf.Operation) else e.op for e in elements])
        return [self._held.as_graph_element(element.name) for element in elements]

    def _grow(self, roots: Iterable[Any]) -> None:
        """Copies operations, and what they depend on, that are not held yet."""
        fresh = all_before(roots, left_out=lambda op: op.name in self._names)
        if not fresh:
            return
        held, added = self._held, {op.name for op in fresh}
        definition = tf.compat.v1.GraphDef(versions=self._graph.graph_def_versions)
        known: dict[str, Any] = {}
        waiting: list[tuple[str, list[Any]]] = []
        for op in fresh:
            node = definition.node.add()
            node.CopyFrom(op.node_def)
            node.attr.pop("_class", None)  # what it stands beside may be left out
            inputs = [tensor.name for tensor in op.inputs if tensor.op.name not in added]
            known.update((name, held.get_tensor_by_name(name)) for name in inputs)
            before = [other.name for other in op.control_inputs if other.name not in added]
            if before:
                waiting.append((op.name, [held.get_operation_by_name(name) for name in before]))
            for name in before:
                node.input.remove(f"^{name}")
        self._add_functions(_called(definition.node))
        with held.as_default():
            tf.import_graph_def(definition, known, name="")
        for name, others in waiting:
            # Private API of TF 2.15: an import takes no operations without results.
            held.get_operation_by_name(name)._add_control_inputs(others)
        self._names |= added

    def _add_functions(self, names: Iterable[str]) -> None:
        """Copies functions, and those that they run, that are not held yet."""
        # Private API of TF 2.15: there is no public way to a graph's functions.
        given, waiting = self._graph._functions, list(names)
        while waiting:
            name = waiting.pop()
            if name in given and name not in self._functions:
                self._functions.add(name)
                self._held._add_function(given[name])
                waiting.extend(_called(given[name].definition.node_def))


def _called(nodes: Iterable[Any]) -> Iterator[str]:
    """Names of the functions that nodes run."""
    for node in nodes:
        for value in node.attr.values():
            called = [value.func] if value.HasField("func") else value.list.func
            yield from (function.name for function in called)


def with_pruned_graphs(config: Any) -> Any:
    """A session's configuration that keeps no second copy of what is never run in the session.

    It still has the one that it makes programs from.
    """
    found = tf.compat.v1.ConfigProto()
    found.CopyFrom(config)
    found.graph_options.place_pruned_graph = True
    return found


def keep_lean(graph: Any) -> None:
    """Has tf.estimator make lean sessions of a graph."""
    _GRAPHS.add(graph)


def _session(target: str = "", graph: Any = None, config: Any = None) -> Any:
    kind = LeanSession if graph in _GRAPHS else client_session.Session
    return kind(target, graph=graph, config=config)


session_manager.session = types.SimpleNamespace(Session=_session)
