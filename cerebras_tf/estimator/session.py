"""The hook that connects a wafer to a running session.

It sees what every session.run fetches: wanted wafer values are asked for before the step runs, and
tensors of the model that a hook fetches directly are filled in afterwards. Only a fetch of the
training op trains, and only what depends on a batch takes one from the input: variables that a hook
reads or assigns by itself are those of the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
import tensorflow as tf
from tensorflow.python.client import session as client_session

from cerebras_tf.capture.order import all_before
from cerebras_tf.errors import CerebrasError, ConfigError
from cerebras_tf.estimator.cluster import ENDED
from cerebras_tf.estimator.structures import leaves, map_fetches
from cerebras_tf.estimator.wiring import TRAINS, Wiring
from cerebras_tf.runtime.capacity import return_freed_memory


class WaferHook(tf.estimator.SessionRunHook):
    """Must be the last hook: its `begin` re-routes what other hooks have added to the graph.

    Args:
        wiring: the wafer's nodes in the graph.
        train_op: the model's own training op, replaced wherever it is fetched.
        stored: serves variables that a fetch reads or assigns beside the step.
        start: told of every session once its variables have values, before anything runs.
    """

    def __init__(
        self,
        wiring: Wiring,
        train_op: Optional[Any],
        stored: Any,
        start: Callable[[Any], None] = lambda session: None,
    ) -> None:
        self._wiring = wiring
        self._start = start
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
        return_freed_memory()  # the last hook: what others set up is done

    def connect(self, session: Any) -> None:
        """Wraps the session's run, once; the scaffold asks for it before any hook runs fetches."""
        if session is self._session:
            return
        self._session = session
        self._start(session)
        run = session.run

        def wrapped(
            fetches: Any, feed_dict: Any = None, options: Any = None, run_metadata: Any = None
        ) -> Any:
            return self._run(run, session.graph, fetches, feed_dict, options, run_metadata)

        session.run = wrapped

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Ends training on all wafers where one of them was told to stop."""
        swarm = self._wiring.step.swarm
        if swarm.size > 1 and swarm.gather(np.array(bool(run_context.stop_requested))).any():
            run_context.request_stop()

    def _run(self, run: Any, graph: Any, fetches: Any, *rest: Any) -> Any:
        """Runs the step where it is asked for, then what concerns variables alone."""
        wanted = fetched_leaves(fetches)
        uses = [self._use(graph, leaf) for leaf in wanted]
        if all(use == _Use() for use in uses):  # such as a queue's threads, beside a step
            return run(fetches, *rest)
        trains = any(use.trains for use in uses)
        alone = [use.assigns or (use.reads and not trains) for use in uses]
        beside = [self._nothing if apart else leaf for leaf, apart in zip(wanted, alone)]
        values = self._run_step(run, graph, beside, *rest)
        for index, apart in enumerate(alone):
            if apart:
                values[index] = self._stored.value(run, graph, wanted[index], rest[0])
        return with_values(fetches, values)

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

    def _run_step(self, run: Any, graph: Any, wanted: list[Any], *rest: Any) -> list[Any]:
        """Values of leaves, those of the wafer computed in this run's step."""
        direct: dict[int, str] = {}
        names: set[str] = set()
        wiring = self._wiring

        def replaced(index: int, item: Any) -> Any:
            element = graph.as_graph_element(item, allow_tensor=True, allow_operation=True)
            op = element if isinstance(element, tf.Operation) else element.op
            if op is self._train_op and wiring.train_op is not None:
                element = wiring.train_op  # fetched by name
            elif wiring.placement.on_wafer(op):
                if isinstance(element, tf.Tensor):
                    wiring.step.tensors.setdefault(element.name, element)
                    direct[index] = element.name
                    names.add(element.name)
                return wiring.token.op
            names.update(wiring.needs(element))
            return element

        fetches = [replaced(index, item) for index, item in enumerate(wanted)]
        wiring.step.want(names - {TRAINS}, update=TRAINS in names)
        try:
            values = run(fetches, *rest)
        except tf.errors.OpError as stopped:
            error, wiring.step.error = wiring.step.error, None
            if isinstance(stopped, tf.errors.OutOfRangeError) and TRAINS in names:
                wiring.step.meet(ENDED)
            if isinstance(error, CerebrasError):
                raise error from None
            raise
        for index, name in direct.items():
            values[index] = wiring.step.result(name)
        return list(values)


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


def fetched_leaves(fetches: Any) -> list[Any]:
    """Tensors, operations, variables and names that a session's run is asked for, in order.

    A sparse or ragged tensor and indexed slices count as the tensors they consist of.
    """
    return [part for leaf in leaves(fetches) for part in _expanded(leaf)[0]]


def with_values(fetches: Any, values: Iterable[Any]) -> Any:
    """What a session's run returns for fetches: their structure, with values for its leaves.

    Args:
        fetches: as given to run.
        values: a value for each of `fetched_leaves(fetches)`.
    """
    given = iter(values)

    def value(leaf: Any) -> Any:
        parts, contracted = _expanded(leaf)
        return contracted([next(given) for _ in parts])

    return map_fetches(fetches, value)


def _expanded(leaf: Any) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    """Tensors of which a leaf consists, and what makes their values into the leaf's value."""
    # Private API of TF 2.15: the table by which its own sessions take composite tensors apart.
    for kind, expand, *_ in client_session._REGISTERED_EXPANSIONS:
        if isinstance(leaf, kind):
            return expand(leaf)
    raise AssertionError("the table ends with an entry for every object")
