"""The hook that connects a wafer to a running session.

It inspects the fetches of every session.run: it requests the fetched wafer values before the step
runs, and afterwards fills in tensors of the model that a hook fetches directly. Only a fetch of the
training op trains, and only fetches that depend on a batch consume one. Variables that a hook reads
or assigns are read from and written to the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from cerebras_tf.capture.order import all_before
from cerebras_tf.errors import CerebrasError, ConfigError
from cerebras_tf.runtime.capacity import trim_heap
from cerebras_tf.step.wiring import TRAINS, Wiring
from cerebras_tf.tf_compat.internals import client_session
from cerebras_tf.tf_session.structures import leaves, map_fetches

# Limit of cached plans: a script may fetch something new in every run.
_PLANS = 64
# The tensors of a leaf, and a function from their values to the leaf's value.
_Expanded = tuple[list[Any], Callable[[list[Any]], Any]]


class WaferHook(tf.estimator.SessionRunHook):
    """Must be the last hook, because `begin` re-routes operations that other hooks have added.

    Args:
        train_op: the model's own training op, which is replaced in fetches.
        stored: serves variables that a fetch reads or assigns outside the step.
        start: called with every session once its variables have values.
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
        self._plans: dict[tuple[int, ...], _Plan] = {}

    def begin(self) -> None:
        """Re-routes readers of wafer values; compiles now if shapes are known."""
        self._wiring.reroute()
        self._stored.count_as_initialized()  # in operations of hooks
        self._stored.prepare_for(self._wiring.placement.separate_assignments())
        self._nothing = tf.no_op(name="wafer/nothing")
        self._wiring.step.prepare()

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Connects on a non-chief worker, where the scaffold does not."""
        self.connect(session)
        trim_heap()  # this is the last hook, so the others are set up

    def connect(self, session: Any) -> None:
        """Wraps the session's run, once. The scaffold calls it before any hook runs fetches."""
        if session is self._session:
            return
        self._session = session
        self._plans.clear()
        self._start(session)
        run = session.run

        def wrapped(
            fetches: Any, feed_dict: Any = None, options: Any = None, run_metadata: Any = None
        ) -> Any:
            return self._run(run, session.graph, fetches, feed_dict, options, run_metadata)

        session.run = wrapped

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Ends training on all wafers if one of them must stop."""
        swarm = self._wiring.step.swarm
        if swarm.size > 1 and swarm.gather(np.array(bool(run_context.stop_requested))).any():
            run_context.request_stop()

    def _run(self, run: Any, graph: Any, fetches: Any, *rest: Any) -> Any:
        """Runs the step if it is fetched, then reads and assignments of variables."""
        given = leaves(fetches)
        key = tuple(map(id, given))
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) >= _PLANS:
                self._plans.clear()
            plan = self._plans[key] = self._plan(graph, given)
        if plan.is_plain:
            return run(fetches, *rest)
        try:
            fed = _fed(graph, rest[0])
        except (KeyError, TypeError, ValueError):
            return run(fetches, *rest)  # raises TensorFlow's error for an unknown key
        if fed and self._must_run_on_host(plan, fed):
            return with_values(fetches, self._stored.computed(run, graph, plan.wanted, fed))
        step = self._wiring.step
        for tensor in step.added:
            given = fed[tensor] if tensor in fed else run(tensor, fed)
            step.added[tensor] = np.asarray(given, tensor.dtype.as_numpy_dtype)
        values = self._run_step(run, plan, *rest)
        alone = [plan.wanted[index] for index in plan.alone]
        for index, value in zip(plan.alone, self._stored.values(run, graph, alone, rest[0])):
            values[index] = value
        made = _contracted(plan.expanded, values)
        return map_fetches(fetches, lambda leaf: next(made))

    def _plan(self, graph: Any, given: list[Any]) -> _Plan:
        """The plan of a run of these leaves."""
        expanded = [_expanded(leaf) for leaf in given]
        wanted = [part for parts, _ in expanded for part in parts]
        elements = [graph.as_graph_element(leaf) for leaf in wanted]
        plan = _Plan(given, wanted, expanded, list(map(_operation, elements)))
        uses = list(map(self._use, plan.operations))
        if all(use == _Use() for use in uses):  # such as sessions of a queue's threads
            plan.is_plain = True
            return plan
        trains = any(use.trains for use in uses)
        lost = [leaf for leaf, use in zip(wanted, uses) if use.assigns_in_step]
        if lost and not trains and self._train_op is not None:
            raise ConfigError(
                "session.run: variables that a training step assigns must be fetched together "
                f"with train_op. Received: {getattr(lost[0], 'name', lost[0])!r} alone. Fetch both "
                "in one run (SessionRunArgs of a hook), or train with use_cs=False."
            )
        plan.alone = [i for i, use in enumerate(uses) if use.assigns or (use.reads and not trains)]
        leaves_of_step = [
            self._nothing if i in plan.alone else leaf for i, leaf in enumerate(wanted)
        ]
        self._plan_step(graph, leaves_of_step, plan)
        return plan

    def _use(self, op: Any) -> _Use:
        """What a fetched operation does with variables of the wafer.

        Raises:
            ConfigError: it assigns what a step must compute first.
        """
        if op not in self._uses:
            self._uses[op] = self._find_use(op)
        return self._uses[op]

    def _find_use(self, op: Any) -> _Use:
        wiring, before = self._wiring, ancestors(op)
        as_built = all_before([op], wiring.placement.control_inputs)  # not yet re-routed
        assigned = [other for other in as_built if self._stored.assigns(other)]
        alone = [other for other in assigned if not wiring.placement.is_computed(other)]
        has_step = len(alone) < len(assigned) or wiring.token.op in before
        has_batch = not wiring.fed_operations.isdisjoint(before)
        if alone and (has_step or has_batch or wiring.placement.reads_batch(before)):
            within = "" if alone[0] is op else f", which runs {alone[0].name!r} ({alone[0].type})"
            raise ConfigError(
                "session.run: an operation that assigns variables on the wafer must not depend on "
                f"a batch or a step. Received: {op.name!r}{within}. Make it part of train_op, or "
                "train with use_cs=False."
            )
        if op is self._train_op or TRAINS in wiring.needs(op):
            return _Use(steps=True, trains=True)
        on_wafer = wiring.placement.on_wafer(op)
        steps = on_wafer or wiring.token.op in before
        if not (on_wafer or any(map(self._stored.touches, before))):
            return _Use(steps, assigns_in_step=bool(assigned))
        if has_step or has_batch:
            return _Use(steps, assigns_in_step=bool(assigned))
        return _Use(steps, assigns=bool(alone), reads=not alone)

    def _plan_step(self, graph: Any, wanted: list[Any], plan: _Plan) -> None:
        """Finds what the session computes for leaves, and what they need of the wafer's step."""
        names: set[str] = set()
        wiring = self._wiring

        def replaced(index: int, item: Any) -> Any:
            element = graph.as_graph_element(item)
            op = _operation(element)
            if op is self._train_op and wiring.train_op is not None:
                element = wiring.train_op  # fetched by name
            elif wiring.placement.on_wafer(op):
                if isinstance(element, tf.Tensor):
                    wiring.step.tensors.setdefault(element.name, element)
                    plan.direct[index] = element.name
                    names.add(element.name)
                return wiring.token.op
            names.update(wiring.needs(element))
            return element

        plan.fetches = [replaced(index, item) for index, item in enumerate(wanted)]
        plan.names, plan.updates = frozenset(names - {TRAINS}), TRAINS in names

    def _must_run_on_host(self, plan: _Plan, fed: Mapping[Any, Any]) -> bool:
        """Whether TensorFlow must compute the fetches, as a step would not use what is fed.

        Raises:
            ConfigError: it cannot, because the fetches include a step.
        """
        names = frozenset(tensor.name for tensor in fed)
        if names not in plan.on_host:
            wiring = self._wiring
            roots = [wiring.step.tensors[name].op for name in plan.names]
            if plan.updates:
                roots.append(self._train_op)
            ignored = wiring.ignored(roots, fed)
            alone = wiring.step.swarm.size == 1 and wiring.step.split is None
            if ignored and alone and all(map(wiring.placement.can_become_input, ignored)):
                for tensor in ignored:
                    wiring.step.add_input(tensor)
                ignored = []
            takes = wiring.takes_batch(list(map(_operation, plan.fetches)), roots, fed)
            if (ignored or takes) and not self._can_run_on_host(plan):
                raise _refusal([tensor.name for tensor in ignored], sorted(names))
            plan.on_host[names] = bool(ignored) or takes
            if plan.on_host[names]:
                tf.compat.v1.logging.info(
                    "session.run: TensorFlow computes %s on the host, because %s is fed",
                    ", ".join(repr(op.name) for op in plan.operations),
                    ", ".join(map(repr, sorted(names))),
                )
        return plan.on_host[names]

    def _can_run_on_host(self, plan: _Plan) -> bool:
        """Whether a session with the variables can compute what a plan's fetches depend on."""
        wiring = self._wiring
        if plan.updates or wiring.step.split is not None or wiring.step.swarm.size > 1:
            return False
        needs_step = wiring.token.op in all_before(plan.operations)
        return not (needs_step or any(map(self._stored.assigned_by, plan.operations)))

    def _run_step(self, run: Any, plan: _Plan, *rest: Any) -> list[Any]:
        """Values of leaves; runs the wafer's step."""
        step = self._wiring.step
        step.want(plan.names, plan.updates)
        try:
            values = list(self._values(run, plan, *rest))
        except tf.errors.OpError as stopped:
            error, step.error = step.error, None
            if isinstance(stopped, tf.errors.OutOfRangeError) and plan.updates:
                step.agree(False)
                step.end_of_data(stopped.op)
            if isinstance(error, CerebrasError):
                raise error from None
            raise
        for index, name in plan.direct.items():
            values[index] = step.result(name)
        return values

    def _values(
        self, run: Any, plan: _Plan, feed_dict: Any, options: Any, run_metadata: Any
    ) -> Any:
        """Values that the session computes; by a callable if there are no feeds and options.

        TensorFlow's run would look up every fetch again.
        """
        session: Any = getattr(run, "__self__", None)
        is_own = (
            getattr(run, "__func__", None) is client_session.BaseSession.run
            and type(session)._make_callable_from_options
            is client_session.BaseSession._make_callable_from_options
        )
        if feed_dict or (options is not None and options.ByteSize()) or not is_own:
            return run(plan.fetches, feed_dict, options, run_metadata)
        if plan.call is None:
            plan.call = _callable(session, plan.fetches)
        # Private API of TensorFlow: adds to an error where the operation was built.
        return session._do_call(plan.call)


def _callable(session: Any, fetches: list[Any]) -> Callable[[], Any]:
    """A function that runs fetches, as `session.make_callable` returns.

    That one holds TensorFlow's handles of operations. They keep the graph, which keeps this hook,
    in a way that Python's garbage collector does not see, so that none of them is ever freed.
    """
    # Private API of TensorFlow: a callable of names, and the values of fetches.
    handler = client_session._FetchHandler(session.graph, fetches, {})
    run = session._make_callable_from_options(
        client_session.config_pb2.CallableOptions(
            fetch=[tensor.name for tensor in handler.fetches()],
            target=[op.name for op in handler.targets()],
        )
    )
    return lambda: handler.build_results(session, run())


@dataclass(eq=False)
class _Plan:
    """How a run computes its fetches; cached for runs that fetch the same objects.

    Attributes:
        given: leaves of the fetches; kept alive, because the cache uses their identities.
        wanted: tensors and operations of the leaves.
        expanded: those of each leaf, and the function from their values to its value.
        operations: those that make `wanted`.
        is_plain: whether they do not concern the wafer.
        alone: indices of those that the store serves.
        fetches: what the session computes, for each.
        direct: names of those whose values the wafer's step returns, by index.
        names: values that the step must return.
        updates: whether it trains.
        call: runs the fetches; made at the first use.
        on_host: whether TensorFlow computes them, by the names of fed tensors.
    """

    given: list[Any]
    wanted: list[Any]
    expanded: list[_Expanded]
    operations: list[Any]
    is_plain: bool = False
    alone: list[int] = field(default_factory=list)
    fetches: list[Any] = field(default_factory=list)
    direct: dict[int, str] = field(default_factory=dict)
    names: frozenset[str] = frozenset()
    updates: bool = False
    call: Optional[Callable[[], Any]] = None
    on_host: dict[frozenset[str], bool] = field(default_factory=dict)


@dataclass(frozen=True)
class _Use:
    """What a fetch does: make a step, train, or only assign or read variables of the wafer.

    `assigns_in_step`: it assigns what a training step assigns.
    """

    steps: bool = False
    trains: bool = False
    assigns: bool = False
    reads: bool = False
    assigns_in_step: bool = False


def _operation(element: Any) -> Any:
    """An operation, or the one that makes a tensor."""
    return element if isinstance(element, tf.Operation) else element.op


def _fed(graph: Any, feed_dict: Any) -> dict[Any, Any]:
    """The tensors of a feed_dict with their values."""
    found: dict[Any, Any] = {}
    for key, value in client_session.nest.flatten_dict_items(feed_dict or {}).items():
        # Private API of TensorFlow: the table by which sessions expand composite tensors.
        for kind, _, expand, _ in client_session._REGISTERED_EXPANSIONS:
            if isinstance(key, kind):
                parts = expand(key, value)
                break
        found.update((graph.as_graph_element(part), content) for part, content in parts)
    return found


def _refusal(ignored: list[str], names: list[str]) -> ConfigError:
    """The error of feeds that a step does not use."""
    if ignored:
        return ConfigError(
            "feed_dict: must not contain a tensor that the wafer computes. Received: "
            f"{', '.join(map(repr, ignored))}. Make it tf.compat.v1.placeholder_with_default, or "
            "use use_cs=False."
        )
    return ConfigError(
        "feed_dict: must contain all tensors of a batch that a step on the wafer reads, or none. "
        f"Received: {', '.join(map(repr, names))}. Feed the others too, or use use_cs=False."
    )


def ancestors(op: Any) -> list[Any]:
    """An operation and those it depends on."""
    return all_before([op])


def fetched_leaves(fetches: Any) -> list[Any]:
    """Tensors, operations, variables and names in the fetches of a session's run, in order.

    Sparse and ragged tensors and indexed slices are replaced by their component tensors.
    """
    return [part for leaf in leaves(fetches) for part in _expanded(leaf)[0]]


def with_values(fetches: Any, values: Iterable[Any]) -> Any:
    """The result of a session's run: the structure of the fetches with values for its leaves.

    Args:
        values: a value for each of `fetched_leaves(fetches)`.
    """
    made = _contracted([_expanded(leaf) for leaf in leaves(fetches)], values)
    return map_fetches(fetches, lambda leaf: next(made))


def _contracted(expanded: Iterable[_Expanded], values: Iterable[Any]) -> Iterator[Any]:
    """Values of leaves, given the values of their tensors."""
    given = iter(values)
    return (contract([next(given) for _ in parts]) for parts, contract in expanded)


def _expanded(leaf: Any) -> _Expanded:
    """The tensors of a leaf, and a function from their values to the leaf's value."""
    # Private API of TensorFlow: the table by which sessions expand composite tensors.
    for kind, expand, *_ in client_session._REGISTERED_EXPANSIONS:
        if isinstance(leaf, kind):
            return expand(leaf)
    raise AssertionError("the table ends with an entry for every object")
