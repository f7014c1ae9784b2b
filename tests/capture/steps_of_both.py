"""Captures a small TensorFlow graph and runs the same steps in TensorFlow and by plain kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from cerebras_tf.capture.capture import RANDOM_STEP, Capture
from cerebras_tf.capture.custom_gradients import prepare_custom_gradients
from cerebras_tf.capture.recording import GradientRecorder
from cerebras_tf.capture.variables import tensor_type, variable_spec
from cerebras_tf.ir import StepGraph
from cerebras_tf.passes.differentiate import differentiate
from tests.graphs import run_plain

Arrays = dict[str, np.ndarray]
# Relative and absolute tolerance for a few float32 operations over several steps.
CLOSE = (2e-5, 1e-6)


@dataclass
class Built:
    """What a test builds in a graph.

    Attributes:
        results: tensors whose values are compared.
        effects: operations, or tensors of them, whose assignments are made.
    """

    results: dict[str, Any] = field(default_factory=dict)
    effects: Sequence[Any] = ()


# Placeholders in, tensors and operations out.
Build = Callable[..., Built]


class Cases(list[Any]):
    """Parameters (build, batches) of a test that compares steps; `@cases(*batches)` adds one."""

    def __call__(self, *batches: Sequence[np.ndarray]) -> Callable[[Build], Build]:
        def add(build: Build) -> Build:
            self.append(pytest.param(build, batches, id=build.__name__))
            return build

        return add


def variables_by_handle() -> dict[Any, Any]:
    """IR variables of the default graph's variables, by the op that makes their handle."""
    return {v.handle.op: variable_spec(v) for v in tf.compat.v1.global_variables()}


def captured(build: Build, *arrays: np.ndarray) -> StepGraph:
    """The captured step; arrays give the placeholders' types."""
    with tf.Graph().as_default():
        _, _, step = _captured(build, arrays)
    return step


def _captured(build: Build, arrays: Sequence[np.ndarray]) -> tuple[list[Any], Built, StepGraph]:
    places = [tf.compat.v1.placeholder(x.dtype, x.shape, f"x{i}") for i, x in enumerate(arrays)]
    recorder = GradientRecorder()
    with recorder:
        built = build(*places)
    custom = prepare_custom_gradients(tf.compat.v1.get_default_graph(), recorder)
    types = {place: tensor_type(place) for place in places}
    capture = Capture(variables_by_handle(), types, recorder.calls, custom)
    effects = [e.op if isinstance(e, tf.Tensor) else e for e in built.effects]
    return places, built, capture.run(built.results, effects)


def run_step(step: StepGraph, features: Arrays, variables: Arrays) -> tuple[Arrays, Arrays]:
    """(results, variables afterwards) of a differentiated step by the plain kernels."""
    given = {**features, **variables}
    outputs = run_plain(step.graph, [given[value.name] for value in step.graph.inputs])
    count = len(step.updates)
    after = {**variables, **dict(zip(step.updates, outputs[:count]))}
    return dict(zip(step.results, outputs[count:])), after


def check_steps(
    build: Build, *batches: Sequence[np.ndarray], close: tuple[float, float] = CLOSE
) -> StepGraph:
    """Asserts that captured steps give what TensorFlow gives: results, and variables after each.

    Args:
        build: makes the graph; called once.
        batches: content of the placeholders, step by step.
        close: (relative, absolute) tolerance.

    Returns:
        The step, differentiated.
    """
    with tf.Graph().as_default():
        places, built, step = _captured(build, batches[0])
        names = {v.op.name: v for v in tf.compat.v1.global_variables()}
        start, wanted = _run_tensorflow(places, built, names, batches)
    differentiate(step.graph)
    state = start
    for number, (batch, (results, variables)) in enumerate(zip(batches, wanted)):
        features = {place.name: array for place, array in zip(places, batch)}
        features[RANDOM_STEP] = np.asarray(number, np.int64)
        ours, state = run_step(step, features, state)
        assert set(ours) == set(results)
        for name, theirs in {**results, **variables}.items():
            mine = ours[name] if name in results else state[name]
            assert mine.shape == np.shape(theirs) and mine.dtype == np.asarray(theirs).dtype, name
            np.testing.assert_allclose(
                mine, theirs, rtol=close[0], atol=close[1], err_msg=f"step {number}: {name}"
            )
    return step


def _run_tensorflow(
    places: list[Any], built: Built, names: dict[str, Any], batches: Sequence[Any]
) -> tuple[Arrays, list[tuple[Arrays, Arrays]]]:
    """(initial variables, (results, variables afterwards) of every step) in a session."""
    steps = []
    with tf.compat.v1.Session() as session:
        session.run(tf.compat.v1.global_variables_initializer())
        start = session.run(names)
        for batch in batches:
            results, _ = session.run((built.results, list(built.effects)), dict(zip(places, batch)))
            steps.append((results, session.run(names)))
    return start, steps
