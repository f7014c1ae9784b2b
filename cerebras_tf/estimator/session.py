"""The hook that connects a wafer to a running session.

It sees what every session.run fetches: wanted wafer values are asked for before the step runs, and
tensors of the model that a hook fetches directly are filled in afterwards. Only a fetch of the
training op trains, and only what depends on a batch takes one from the input: variables that a hook
reads or assigns by itself are those of the store.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Optional

import tensorflow as tf

from cerebras_tf.capture.order import all_before
from cerebras_tf.errors import CerebrasError, ConfigError
from cerebras_tf.estimator.wiring import TRAINS, Wiring


class WaferHook(tf.estimator.SessionRunHook):
    """Must be the last hook: its `begin` re-routes what other hooks have added to the graph.

    Args:
        wiring: the wafer's nodes in the graph.
        train_op: the model's own training op, replaced wherever it is fetched.
        stored: serves variables that a fetch reads or assigns beside the step.
    """

    def __init__(self, wiring: Wiring, train_op: Optional[Any], stored: Any) -> None:
        self._wiring = wiring
        self._train_op = train_op
        self._stored = stored
        self._session: Any = None
        self._uses: dict[Any, _Use] = {}

    def begin(self) -> None:
        """Re-routes readers of wafer values; compiles now where shapes are known."""
        self._wiring.reroute()
        self._nothing = tf.no_op(name="wafer/nothing")
        self._wiring.step.prepare()

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Connects, where the scaffold did not: on a worker that another task leads."""
        self.connect(session)

    def connect(self, session: Any) -> None:
        """Wraps the session's run, once; the scaffold asks for it before any hook runs fetches."""
        if session is self._session:
            return
        self._session = session
        run = session.run

        def wrapped(
            fetches: Any, feed_dict: Any = None, options: Any = None, run_metadata: Any = None
        ) -> Any:
            return self._run(run, session.graph, fetches, feed_dict, options, run_metadata)

        session.run = wrapped

    def _run(self, run: Any, graph: Any, fetches: Any, *rest: Any) -> Any:
        """Runs the step where it is asked for, then what concerns variables alone."""
        uses = [(leaf, self._use(graph, leaf)) for leaf in leaves(fetches)]
        if all(use == _Use() for _, use in uses):  # such as a queue's threads, beside a step
            return run(fetches, *rest)
        trains = any(use.trains for _, use in uses)
        alone = {id(leaf): leaf for leaf, u in uses if u.assigns or (u.reads and not trains)}
        if not alone:
            return self._run_step(run, graph, fetches, *rest)
        beside = map_fetches(fetches, lambda leaf: self._nothing if id(leaf) in alone else leaf)
        results = self._run_step(run, graph, beside, *rest)
        values = {key: self._stored.value(run, graph, leaf, rest[0]) for key, leaf in alone.items()}
        return _fill(fetches, results, lambda leaf: values.get(id(leaf)))

    def _use(self, graph: Any, fetch: Any) -> _Use:
        """What a fetch does with variables of the wafer.

        Raises:
            ConfigError: it assigns what a step must compute first.
        """
        element = graph.as_graph_element(fetch, allow_tensor=True, allow_operation=True)
        op = element if isinstance(element, tf.Operation) else element.op
        if op not in self._uses:
            self._uses[op] = self._find_use(op)
        return self._uses[op]

    def _find_use(self, op: Any) -> _Use:
        wiring, before = self._wiring, ancestors(op)
        if op is self._train_op or TRAINS in wiring.needs(op):
            return _Use(steps=True, trains=True)
        on_wafer = wiring.placement.on_wafer(op)
        steps = on_wafer or wiring.token.op in before
        if not (on_wafer or any(map(self._stored.touches, before))):
            return _Use(steps)
        assigned = [other for other in before if self._stored.assigns(other)]
        if any(map(wiring.placement.is_computed, assigned)):
            return _Use(steps)
        if wiring.token.op in before or not wiring.fed_operations.isdisjoint(before):
            if assigned:
                raise ConfigError(
                    "session.run: what assigns variables on the wafer must not depend on a batch. "
                    f"Received: {op.name!r}. Make it part of train_op, or train with use_cs=False."
                )
            return _Use(steps)
        return _Use(steps, assigns=bool(assigned), reads=not assigned)

    def _run_step(self, run: Any, graph: Any, fetches: Any, *rest: Any) -> Any:
        direct: dict[str, Any] = {}
        wanted: set[str] = set()
        wiring = self._wiring

        def replace(item: Any) -> Any:
            element = graph.as_graph_element(item, allow_tensor=True, allow_operation=True)
            op = element if isinstance(element, tf.Operation) else element.op
            if op is self._train_op and wiring.train_op is not None:
                element = wiring.train_op  # fetched by name
            elif wiring.placement.on_wafer(op):
                if isinstance(element, tf.Operation):
                    return wiring.token.op
                wiring.step.tensors.setdefault(element.name, element)
                direct[element.name] = element
                wanted.add(element.name)
                return wiring.token
            wanted.update(wiring.needs(element))
            return element

        replaced = map_fetches(fetches, replace)
        wiring.step.want(wanted - {TRAINS}, update=TRAINS in wanted)
        try:
            results = run(replaced, *rest)
        except tf.errors.OpError:
            error, wiring.step.error = wiring.step.error, None
            if isinstance(error, CerebrasError):
                raise error from None
            raise
        if not direct:
            return results
        return _fill(fetches, results, lambda item: self._direct(graph, item, direct))

    def _direct(self, graph: Any, item: Any, direct: dict[str, Any]) -> Any:
        element = graph.as_graph_element(item, allow_tensor=True, allow_operation=True)
        name = getattr(element, "name", "")
        if isinstance(element, tf.Tensor) and name in direct:
            return self._wiring.step.result(name)
        return None


@dataclass(frozen=True)
class _Use:
    """What a fetch does: make a step, train, or alone assign or read variables of the wafer."""

    steps: bool = False
    trains: bool = False
    assigns: bool = False
    reads: bool = False


def ancestors(op: Any) -> list[Any]:
    """An operation and those it depends on."""
    return all_before([op])


def map_fetches(structure: Any, change: Callable[[Any], Any]) -> Any:
    """Applies a function to the leaves of a fetch structure."""
    if structure is None:
        return None
    parts = _parts(structure)
    if parts is None:
        return change(structure)
    return _like(structure, [map_fetches(part, change) for part in parts])


def leaves(structure: Any) -> list[Any]:
    """Leaves of a structure in its own order; keys of its dicts need not be comparable."""
    found: list[Any] = []
    map_fetches(structure, found.append)
    return found


def _fill(fetches: Any, results: Any, value_of: Callable[[Any], Any]) -> Any:
    """Replaces results of leaves for which `value_of` gives a value."""
    if fetches is None:
        return results
    parts = _parts(fetches)
    if parts is None:
        value = value_of(fetches)
        return results if value is None else value
    pairs = zip(parts, _parts(results) or ())
    return _like(fetches, [_fill(part, result, value_of) for part, result in pairs])


def _parts(structure: Any) -> Optional[list[Any]]:
    """What a structure holds, in its order; None of a leaf. Structures are TensorFlow's own."""
    if isinstance(structure, Mapping):
        return list(structure.values())
    if isinstance(structure, (list, tuple)):
        return list(structure)
    fields = getattr(type(structure), "__attrs_attrs__", None)  # of classes made by attrs
    return None if fields is None else [getattr(structure, field.name) for field in fields]


def _like(structure: Any, parts: list[Any]) -> Any:
    """A structure of the same kind that holds other parts, made as TensorFlow's session does."""
    kind = type(structure)
    if isinstance(structure, defaultdict):
        return kind(structure.default_factory, zip(structure, parts))
    if isinstance(structure, Mapping):
        return kind(zip(structure, parts))
    if isinstance(structure, list) or kind is tuple:
        return kind(parts)
    return kind(*parts)  # a namedtuple, or a class made by attrs
