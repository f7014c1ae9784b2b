"""Records which tensors of a TensorFlow graph are gradients of which.

While a model_fn runs, every call of tf.gradients (and of GradientTape.gradient) is noted: what was
differentiated, by what, and which tensors came out. TensorFlow still builds its own backward graph,
untouched; this file reads none of it. Model functions may run in several threads at a time: each
thread has recorders of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Optional
from weakref import WeakKeyDictionary

import tensorflow as tf

# Private API of TF 2.15, the last release with tf.estimator: tf.gradients, optimizers and Keras
# all end in this one function, which has no public hook.
from tensorflow.python.ops import gradients_util


@dataclass
class GradientCall:
    """One call of a gradient function.

    Attributes:
        ys: differentiated tensors.
        dys: given cotangents, None where it is ones.
        xs: tensors differentiated by; resource handles stand for variables.
        stops: tensors behind which nothing is differentiated; for a tape, what it has not seen.
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
    def foreign(self) -> list[Any]:
        """Tensors of another graph that a call in a function body was given, as for a branch."""
        graph = next((op.graph for op in self.made), None)
        given = [*self.ys, *self.xs] if graph is not None else []
        return [tensor for tensor in given if tensor.graph is not graph]


@dataclass
class GradientRecorder:
    """Context manager that records gradient calls that its thread makes while it is active.

    Attributes:
        calls: recorded calls, in order; inner calls of a recorded one are left out.
    """

    calls: list[GradientCall] = field(default_factory=list)
    _depth: int = 0
    # For every tape: (graph, number of operations when it began, and when it paused).
    _spans: WeakKeyDictionary[Any, list[tuple[Any, int, Optional[int]]]] = field(
        default_factory=WeakKeyDictionary
    )

    def __enter__(self) -> GradientRecorder:
        _patches.acquire()
        _of_thread.recorders = [*getattr(_of_thread, "recorders", ()), self]
        return self

    def __exit__(self, *exc: Any) -> None:
        _of_thread.recorders = _of_thread.recorders[:-1]
        _patches.release()

    def _began(self, tape: Any) -> None:
        spans = self._spans.setdefault(tape, [])
        if tape._tape is None:  # new, or reset
            spans.clear()
        graph = tf.compat.v1.get_default_graph()
        spans.append((graph, len(graph.get_operations()), None))

    def _paused(self, tape: Any) -> None:
        spans = self._spans.get(tape)
        if spans:
            graph, start, _ = spans[-1]
            spans[-1] = (graph, start, len(graph.get_operations()))

    def _unseen(self, tape: Any, ys: Any) -> Optional[list[Any]]:
        """Operands of what a tape has seen on the way to ys that were made unseen."""
        spans = self._spans.get(tape)
        if not spans:  # made before this recorder was active
            return None
        seen = {op for graph, start, end in spans for op in graph.get_operations()[start:end]}
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
        unseen = recorder._unseen(tape, target)
        return recorder._record(run, target, sources, output_gradients, unseen)

    return call


def _noted_push(push: Callable[..., None]) -> Callable[..., None]:
    def call(tape: Any) -> None:
        recorder = _recorder()
        if recorder is not None:
            recorder._began(tape)
        push(tape)

    return call


def _noted_pop(pop: Callable[..., None]) -> Callable[..., None]:
    def call(tape: Any) -> None:
        pop(tape)
        recorder = _recorder()
        if recorder is not None:
            recorder._paused(tape)

    return call


class _Patches:
    """What of TensorFlow is replaced while a recorder is active in any thread."""

    _WRAPPERS = (
        (gradients_util, "_GradientsHelper", _recorded_helper),
        (tf.GradientTape, "gradient", _recorded_gradient),
        (tf.GradientTape, "_push_tape", _noted_push),
        (tf.GradientTape, "_pop_tape", _noted_pop),
    )

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._originals: list[Any] = []

    def acquire(self) -> None:
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._originals = [getattr(owner, name) for owner, name, _ in self._WRAPPERS]
                for (owner, name, wrapper), original in zip(self._WRAPPERS, self._originals):
                    setattr(owner, name, wrapper(original))

    def release(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                for (owner, name, _), original in zip(self._WRAPPERS, self._originals):
                    setattr(owner, name, original)


_patches = _Patches()


def _made_in(fresh: set[Any], result: Any) -> Any:
    """The result, or None where it is an older tensor, known without any differentiation."""
    tensor = result.values if isinstance(result, tf.IndexedSlices) else result
    return None if tensor is None or tensor.op not in fresh else result


def _tensor(item: Any) -> Any:
    """The tensor that stands for an argument of tf.gradients: a variable's is its handle."""
    handle = getattr(item, "handle", None)
    if handle is not None:
        return handle
    return tf.convert_to_tensor(item)
