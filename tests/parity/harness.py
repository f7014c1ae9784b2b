"""Compares IR and kernels with TensorFlow on the CPU: forward values and gradients.

One function, usable as a parametrised row. It runs plain kernels only; the compiled ones are
compared with those elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from cerebras_tf.capture.capture import Capture
from cerebras_tf.ir import Graph, TensorType, Value, verify
from cerebras_tf.kernels.registry import evaluate
from cerebras_tf.ops import Builder, infer
from cerebras_tf.passes.differentiate import differentiate
from tests.graphs import run_plain
from tests.tolerances import TOLERANCES

# Placeholders in, one tensor or several out.
Build = Callable[[list[Any]], Any]


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    """float32 normal numbers."""
    numbers = np.random.default_rng([seed, *shape]).standard_normal(shape)
    return (scale * numbers).astype(np.float32)


def uniform(*shape: int, low: float = 0.1, high: float = 2.0, seed: int = 0) -> np.ndarray:
    """float32 uniform numbers, positive unless said."""
    return np.random.default_rng([seed, *shape]).uniform(low, high, shape).astype(np.float32)


def integers(*shape: int, high: int, dtype: str = "int32", seed: int = 0) -> np.ndarray:
    """Integers in [0, high)."""
    return np.random.default_rng([seed, *shape]).integers(0, high, shape).astype(dtype)


def oracle_session() -> Any:
    """A TensorFlow session that runs the graph as written.

    Its graph optimizer is off: the rewrite to a fused layer norm crashes where gamma is fed.
    """
    config = tf.compat.v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    return tf.compat.v1.Session(config=config)


def check_parity(
    build: Build,
    inputs: Sequence[np.ndarray],
    family: str,
    gradient: bool = True,
    sizes_from_data: bool = False,
) -> Graph:
    """Asserts that captured forward and reverse passes compute what TensorFlow computes.

    Args:
        build: makes a tensor (or a list of them) from one placeholder an input.
        inputs: arrays fed to the placeholders; gradients are taken by the floating ones.
        family: row of the tolerance table for forward values; gradients use it too, or the row
            "gradient" where that is wider.
        gradient: whether to compare gradients of sum(output * fixed random numbers).
        sizes_from_data: whether dimensions may be unknown; else every shape must be inferred.

    Returns:
        The IR graph that was run: outputs, then gradients.
    """
    with tf.Graph().as_default():
        placeholders = [tf.compat.v1.placeholder(x.dtype, x.shape) for x in inputs]
        built = build(placeholders)
        outputs = list(built) if isinstance(built, (list, tuple)) else [built]
        floating = [x for x in placeholders if gradient and x.dtype.is_floating]
        wanted, seeds, found = _run_tensorflow(placeholders, inputs, outputs, floating)
        types = {x: TensorType(x.dtype.name, tuple(x.shape.as_list())) for x in placeholders}
        step = Capture({}, types).run(
            {str(number): tensor for number, tensor in enumerate(outputs)}
        )
    used = [x for x in floating if x.name in step.features]
    operands = dict(zip((x.name for x in placeholders), inputs))
    arrays = [operands[value.name] for value in step.graph.inputs]
    results = list(step.graph.outputs)
    if used:
        results += _append_gradient(
            step.graph, results, seeds, [step.features[x.name] for x in used]
        )
        arrays += [seed for seed in seeds if seed is not None]
    step.graph.outputs = results
    differentiate(step.graph)
    step.graph.prune()
    verify(step.graph, infer)
    unknown = [n for n in step.graph.nodes if not all(v.type.is_static for v in n.outputs)]
    assert sizes_from_data or not unknown, f"shapes not inferred: {unknown}"
    actual = run_plain(step.graph, arrays)
    tolerance = TOLERANCES[family]
    for number, (ours, theirs) in enumerate(zip(actual, wanted)):
        assert_close(ours, theirs, tolerance, f"output {number}")
    wide = tolerance
    if any(tolerance) and family != "float64":
        wide = tuple(np.maximum(tolerance, TOLERANCES["gradient"]))
    gradients = dict(zip((x.name for x in used), actual[len(wanted) :]))
    for x, theirs in zip(floating, found):
        ours = gradients.get(x.name, np.zeros_like(theirs))
        assert_close(ours, theirs, wide, f"gradient by {x.name}")
    return step.graph


def assert_close(ours: np.ndarray, theirs: np.ndarray, tolerance: Any, what: str) -> None:
    """Same shape, same dtype, and elements within (relative, absolute) tolerance."""
    theirs = np.asarray(theirs)
    if theirs.dtype.name == "bfloat16":
        theirs = theirs.astype(np.float32)
    assert ours.shape == theirs.shape, f"{what}: {ours.shape} against {theirs.shape}"
    assert ours.dtype == theirs.dtype, f"{what}: {ours.dtype} against {theirs.dtype}"
    relative, absolute = tolerance
    np.testing.assert_allclose(ours, theirs, rtol=relative, atol=absolute, err_msg=what)


def _run_tensorflow(
    placeholders: list[Any], inputs: Sequence[np.ndarray], outputs: list[Any], floating: list[Any]
) -> tuple[list[np.ndarray], list[Any], list[np.ndarray]]:
    """TensorFlow's outputs, the random cotangents of the floating ones, and its gradients."""
    feed = dict(zip(placeholders, inputs))
    with oracle_session() as session:
        wanted = session.run(outputs, feed)
        seeds = [
            normal(*y.shape, seed=7 + number).astype(y.dtype) if y.dtype.kind == "f" else None
            for number, y in enumerate(wanted)
        ]
        if not floating:
            return wanted, seeds, []
        ys = [y for y, seed in zip(outputs, seeds) if seed is not None]
        dys = [tf.constant(seed) for seed in seeds if seed is not None]
        tensors = tf.gradients(ys, floating, dys, unconnected_gradients="zero")
        return wanted, seeds, session.run([tf.convert_to_tensor(x) for x in tensors], feed)


def _append_gradient(
    graph: Graph, outputs: list[Value], seeds: list[Any], xs: list[Value]
) -> list[Value]:
    """A `gradient` node behind the graph; the cotangents become inputs."""
    pairs = [(y, seed) for y, seed in zip(outputs, seeds) if seed is not None]
    ys = [y for y, _ in pairs]
    dys = [graph.add_input("dy", y.type) for y in ys]
    return Builder(graph, evaluate).multi(
        "gradient", *ys, *dys, *xs, ys=len(ys), dys=(True,) * len(ys), xs=len(xs)
    )
