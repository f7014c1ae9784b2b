"""Records which tensors of a TensorFlow graph are gradients of which.

While a model_fn runs, every call of tf.gradients and GradientTape.gradient is recorded with its
operands and results. TensorFlow still builds its own backward graph. Each thread has its own
recorders, since model functions may run in several threads.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Optional
from weakref import WeakKeyDictionary

import tensorflow as tf

from cerebras_tf.capture.replacement import Replacement
from cerebras_tf.tf_compat.internals import gradients_util


@dataclass
class GradientCall:
    """One call of a gradient function.

    Attributes:
        ys: differentiated tensors.
        dys: cotangents of the ys; None stands for ones.
        xs: tensors differentiated by; a variable's is its resource handle.
        stops: tensors that count as constants; for a tape, tensors built while it did not record.
        results: a tensor, IndexedSlices or None for every x.
        made: operations TensorFlow built for this call.
    """

    ys: list[Any]
    dys: list[Optional[Any]]
    xs: list[Any]
    stops: list[Any]
    results: list[Any]
    made: set[Any] = field(default_factory=set)

    @property
    def outer_tensors(self) -> list[Any]:
        """ys and xs of a call in a function body that belong to an enclosing graph."""
        graph = next((op.graph for op in self.made), None)
        tensors = [*self.ys, *self.xs] if graph is not None else []
        return [tensor for tensor in tensors if tensor.graph is not graph]


@dataclass
class GradientRecorder:
    """Context manager that records the gradient calls of its thread.

    Attributes:
        calls: recorded calls, in order, without calls inside a recorded one.
    """

    calls: list[GradientCall] = field(default_factory=list)
    _depth: int = 0
    _patches: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    # For every tape: (graph, number of operations when it started, and when it stopped).
    _intervals: WeakKeyDictionary[Any, list[tuple[Any, int, Optional[int]]]] = field(
        default_factory=WeakKeyDictionary
    )

    def __enter__(self) -> GradientRecorder:
        for replacement in _REPLACEMENTS:
            self._patches.enter_context(replacement.active())
        _of_thread.recorders = [*getattr(_of_thread, "recorders", ()), self]
        return self

    def __exit__(self, *exc: Any) -> None:
        _of_thread.recorders = _of_thread.recorders[:-1]
        self._patches.close()

    def tape_started(self, tape: Any) -> None:
        intervals = self._intervals.setdefault(tape, [])
        if tape._tape is None:  # new, or reset
            intervals.clear()
        graph = tf.compat.v1.get_default_graph()
        intervals.append((graph, len(graph.get_operations()), None))

    def tape_stopped(self, tape: Any) -> None:
        intervals = self._intervals.get(tape)
        if intervals:
            graph, start, _ = intervals[-1]
            intervals[-1] = (graph, start, len(graph.get_operations()))

    def _not_recorded(self, tape: Any, ys: Any) -> Optional[list[Any]]:
        """Tensors that ys depend on and that were built while the tape did not record."""
        intervals = self._intervals.get(tape)
        if not intervals:  # the tape is older than this recorder
            return None
        seen = {op for graph, start, end in intervals for op in graph.get_operations()[start:end]}
        found: dict[tuple[Any, int], Any] = {}
        visited: set[Any] = set()
        stack = [_tensor(y).op for y in tf.nest.flatten(ys)]
        while stack:
            op = stack.pop()
            if op in visited:
                continue
            visited.add(op)
            for tensor in op.inputs:
                if tensor.op in seen:
                    stack.append(tensor.op)
                elif tensor.dtype != tf.resource:
                    found[(tensor.op, tensor.value_index)] = tensor
        return list(found.values())

    def _record(self, run: Callable[[], Any], ys: Any, xs: Any, dys: Any, stops: Any) -> Any:
        graph = tf.compat.v1.get_default_graph()
        before = len(graph.get_operations())
        self._depth += 1
        try:
            result = run()
        finally:
            self._depth -= 1
        if self._depth == 0:
            fresh = set(graph.get_operations()[before:])
            flat_ys = [_tensor(y) for y in tf.nest.flatten(ys)]
            flat_dys = [None] * len(flat_ys) if dys is None else tf.nest.flatten(dys)
            self.calls.append(
                GradientCall(
                    ys=flat_ys,
                    dys=[None if dy is None else _tensor(dy) for dy in flat_dys],
                    xs=[_tensor(x) for x in tf.nest.flatten(xs)],
                    stops=[_tensor(s) for s in tf.nest.flatten(stops)] if stops else [],
                    results=[_made_in(fresh, item) for item in tf.nest.flatten(result)],
                    made=fresh,
                )
            )
        return result


_of_thread = threading.local()


def _recorder() -> Optional[GradientRecorder]:
    """The innermost recorder that is active in this thread."""
    recorders = getattr(_of_thread, "recorders", None)
    return recorders[-1] if recorders else None


def _recorded_helper(helper: Callable[..., Any]) -> Callable[..., Any]:
    def call(ys: Any, xs: Any, grad_ys: Any = None, *args: Any, **kw: Any) -> Any:
        recorder = _recorder()
        if recorder is None:
            return helper(ys, xs, grad_ys, *args, **kw)
        stops = kw.get("stop_gradients", args[4] if len(args) > 4 else None)
        return recorder._record(
            lambda: helper(ys, xs, grad_ys, *args, **kw), ys, xs, grad_ys, stops
        )

    return call


def _recorded_gradient(gradient: Callable[..., Any]) -> Callable[..., Any]:
    def call(tape: Any, target: Any, sources: Any, output_gradients: Any = None, **kw: Any) -> Any:
        def run() -> Any:
            return gradient(tape, target, sources, output_gradients, **kw)

        recorder = _recorder()
        if recorder is None or tf.executing_eagerly():
            return run()
        stops = recorder._not_recorded(tape, target)
        return recorder._record(run, target, sources, output_gradients, stops)

    return call


def _recorded_push(push: Callable[..., None]) -> Callable[..., None]:
    def call(tape: Any) -> None:
        recorder = _recorder()
        if recorder is not None:
            recorder.tape_started(tape)
        push(tape)

    return call


def _recorded_pop(pop: Callable[..., None]) -> Callable[..., None]:
    def call(tape: Any) -> None:
        pop(tape)
        recorder = _recorder()
        if recorder is not None:
            recorder.tape_stopped(tape)

    return call


# Functions of TensorFlow that are replaced while a recorder is active in any thread.
_REPLACEMENTS = [
    Replacement(owner, name, wrapper(getattr(owner, name)))
    for owner, name, wrapper in (
        (gradients_util, "_GradientsHelper", _recorded_helper),
        (tf.GradientTape, "gradient", _recorded_gradient),
        (tf.GradientTape, "_push_tape", _recorded_push),
        (tf.GradientTape, "_pop_tape", _recorded_pop),
    )
]


def _made_in(fresh: set[Any], result: Any) -> Any:
    """The result, or None if it is a tensor that existed before the call."""
    tensor = result.values if isinstance(result, tf.IndexedSlices) else result
    return None if tensor is None or tensor.op not in fresh else result


def _tensor(item: Any) -> Any:
    """The tensor of an argument of tf.gradients; of a variable, its handle."""
    handle = getattr(item, "handle", None)
    if handle is not None:
        return handle
    return tf.convert_to_tensor(item)
