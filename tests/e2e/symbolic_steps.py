"""Captures a model_fn once for symbolic sizes, and for numbers, and compares the two steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from cerebras_tf.compiler.pipeline import compile_step
from cerebras_tf.estimator.model_graph import record
from cerebras_tf.ir import Graph, StepGraph, TensorType, bind_graph, symbols_in, verify
from cerebras_tf.ops import infer
from tests.graphs import run_plain

Sizes = Mapping[str, int]
# Passes fold constants of numbers that stay computed for symbols; both round alike but for that.
CLOSE = (2e-5, 1e-6)


def training_steps(
    model_fn: Callable[..., Any], features: Mapping[str, TensorType], labels: TensorType
) -> Callable[[Optional[Sizes]], StepGraph]:
    """Builds a model's training graph, symbolic dimensions unknown to TensorFlow.

    Returns:
        A function that captures its step: for the symbols, or for numbers in their place.
    """
    graph = tf.Graph()
    with graph.as_default():
        places = {name: _placeholder(name, type) for name, type in features.items()}
        target = _placeholder("labels", labels)
        mode = tf.estimator.ModeKeys.TRAIN
        model = record(lambda: model_fn(places, target, mode, None))
    types = {places[name]: type for name, type in features.items()}
    types[target] = labels

    def captured(sizes: Optional[Sizes] = None) -> StepGraph:
        given = {place: type if sizes is None else type.at(sizes) for place, type in types.items()}
        with graph.as_default():
            return model.capture(given).run({"loss": model.spec.loss}, [model.spec.train_op])

    return captured


def check_sizes(captured: Callable[[Optional[Sizes]], StepGraph], *sizes: Sizes) -> Graph:
    """Asserts that a step compiled once for symbols has the numbers of steps compiled for sizes.

    Both are run as the passes leave them, node by node, by the plain kernels.

    Args:
        captured: of training_steps.
        sizes: numbers for all symbols, one batch each.

    Returns:
        The graph of symbols, as the passes left it.
    """
    symbolic = _compiled(captured(None))
    lost = [v for n in symbolic.nodes for v in n.outputs if not v.type.is_bounded]
    assert not lost, f"sizes lost: {lost}"
    for numbers in sizes:
        concrete = _compiled(captured(numbers))
        bound = bind_graph(symbolic, numbers)
        verify(bound, infer)
        assert not symbols_in(bound)
        arrays = {value.name: _content(value) for value in concrete.inputs}
        ours, theirs = (
            run_plain(graph, [arrays[value.name] for value in graph.inputs])
            for graph in (bound, concrete)
        )
        for number, (mine, other) in enumerate(zip(ours, theirs)):
            what = f"{symbolic.outputs[number]} at {numbers}"
            assert np.isfinite(other).all(), what
            assert mine.shape == other.shape, what
            np.testing.assert_allclose(mine, other, *CLOSE, err_msg=what)
    return symbolic


def _compiled(step: StepGraph) -> Graph:
    compile_step(step)
    return step.graph


def _placeholder(name: str, type: TensorType) -> Any:
    dims = [dim if isinstance(dim, int) else None for dim in type.shape]
    return tf.compat.v1.placeholder(type.dtype, dims, name)


def _content(value: Any) -> np.ndarray:
    """Positive floats (second moments among them), ids of a small vocabulary, masks; step 0."""
    random = np.random.default_rng([ord(letter) for letter in value.name])
    kind = value.type.numpy_dtype
    if kind.kind == "f":
        return random.uniform(0.01, 0.2, value.shape).astype(kind)
    highest = 1 if value.type.rank == 0 else 2
    return np.asarray(random.integers(0, highest, value.shape)).astype(kind)
