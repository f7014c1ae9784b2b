"""Training steps built without TensorFlow, for tests of the compiler and of the machine.

Letters: B batch, H width, F inner width. `expected` is their oracle: the plain kernels, node by
node, in the order they were built.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

import numpy as np

from cerebras_tf.ir import StepGraph, TensorType, Variable
from cerebras_tf.ir.graph import Graph, Value
from cerebras_tf.ops import Builder
from cerebras_tf.passes.differentiate import differentiate
from tests.graphs import run_plain

BATCH, WIDTH, INNER = 8, 16, 64
Arrays = dict[str, np.ndarray]


class StepBuilder:
    """Makes a step graph: features, variables, gradients and updates by name."""

    def __init__(self) -> None:
        self.graph = Graph("step")
        self.b = Builder(self.graph)
        self.step = StepGraph(self.graph)

    def feature(self, name: str, *shape: Optional[int], dtype: str = "float32") -> Value:
        """A new input given at every step."""
        value = self.graph.add_input(name, TensorType(dtype, shape))
        self.step.features[name] = value
        return value

    def variable(self, name: str, *shape: int, dtype: str = "float32") -> Value:
        """A new variable's value at the start of the step."""
        value = self.graph.add_input(name, TensorType(dtype, shape))
        self.step.variables[name] = value
        self.step.specs[name] = Variable(name, value.type, True)
        return value

    def matmul(self, x: Value, w: Value) -> Value:
        """x w."""
        return self.b.op("matmul", x, w, transpose_a=False, transpose_b=False)

    def dropout(self, x: Value, seed: int) -> Value:
        """x with a tenth of its elements dropped, drawn from the feature `step` and a seed."""
        step = self.step.features.get("step")
        if step is None:
            step = self.feature("step", dtype="int64")
        b, drawn_from = self.b, (step, np.array([seed, 1]))
        numbers = b.op("random_uniform", *drawn_from, shape=x.shape, dtype="float32")
        keep = b.op("greater_equal", numbers, 0.1)
        return b.op("select", keep, b.op("mul", x, 1 / 0.9), 0.0)

    def gradients(self, loss: Value, names: Sequence[str]) -> list[Value]:
        """Recorded gradients of a loss by variables."""
        xs = [self.step.variables[name] for name in names]
        return self.b.multi("gradient", loss, *xs, ys=1, dys=(False,), xs=len(xs))

    def momentum(self, loss: Value, names: Sequence[str], clip: bool) -> None:
        """Updates by momentum SGD, the gradient's global norm clipped to 1 where asked."""
        b = self.b
        found = [
            b.op("parameter_gradient", gradient, variable=name)
            for name, gradient in zip(names, self.gradients(loss, names))
        ]
        if clip:
            squares = [
                b.op("sum", b.op("square", g), axes=tuple(range(g.type.rank)), keepdims=False)
                for g in found
            ]
            total = squares[0]
            for part in squares[1:]:
                total = b.op("add", total, part)
            factor = b.op("reciprocal", b.op("maximum", b.op("sqrt", total), 1.0))
            found = [b.op("mul", g, factor) for g in found]
        for name, gradient in zip(names, found):
            slot = self.variable(f"{name}/Momentum", *self.step.variables[name].shape)
            speed = b.op("add", b.op("mul", slot, 0.9), gradient)
            moved = b.op("sub", self.step.variables[name], b.op("mul", speed, 0.01))
            self.step.updates[f"{name}/Momentum"] = speed
            self.step.updates[name] = moved

    def done(self, **results: Value) -> StepGraph:
        """The step with its outputs set."""
        self.step.results.update(results)
        # Inputs stand before nodes in any case; a step lists features first, then variables.
        self.graph.inputs = [*self.step.features.values(), *self.step.variables.values()]
        return self.step


def residual_step(
    blocks: int = 4, clip: bool = False, train: bool = True, drop: bool = False, rows: int = BATCH
) -> StepGraph:
    """x + relu(x W1 + b1) W2, `blocks` times between two projections, trained by momentum.

    With `drop`, every block drops a tenth of what it adds, by seeds of its own.
    """
    s = StepBuilder()
    b = s.b
    x = s.feature("x", rows, WIDTH)
    target = s.feature("target", rows, WIDTH)
    names = ["in/kernel"]
    stream = s.matmul(x, s.variable("in/kernel", WIDTH, WIDTH))
    for number in range(blocks):
        folder = f"block_{number}"
        inner = s.matmul(stream, s.variable(f"{folder}/up/kernel", WIDTH, INNER))
        inner = b.op("relu", b.op("add", inner, s.variable(f"{folder}/up/bias", INNER)))
        down = s.matmul(inner, s.variable(f"{folder}/down/kernel", INNER, WIDTH))
        if drop:
            down = s.dropout(down, number)
        stream = b.op("add", stream, down)
        names += [f"{folder}/{part}" for part in ("up/kernel", "up/bias", "down/kernel")]
    out = s.matmul(stream, s.variable("out/kernel", WIDTH, WIDTH))
    names.append("out/kernel")
    loss = b.op("mean", b.op("squared_difference", out, target), axes=(0, 1), keepdims=False)
    if train:
        s.momentum(loss, names, clip)
    return s.done(loss=loss, out=out)


def gelu_step(
    inners: Sequence[int] = (INNER,) * 4, rows: int = 16 * BATCH, clip: bool = True
) -> StepGraph:
    """x + dropout(gelu(norm(x) W1 + b1) W2), once an inner width, behind a projection."""
    s = StepBuilder()
    b = s.b
    names = ["in/kernel"]
    stream = s.matmul(s.feature("x", rows, WIDTH), s.variable("in/kernel", WIDTH, WIDTH))
    for number, inner_width in enumerate(inners):
        folder = f"block_{number}"
        scales = [s.variable(f"{folder}/norm/{part}", WIDTH) for part in ("gamma", "beta")]
        normed = b.multi("layer_norm", stream, *scales, epsilon=1e-5)[0]
        inner = s.matmul(normed, s.variable(f"{folder}/up/kernel", WIDTH, inner_width))
        inner = b.op("add", inner, s.variable(f"{folder}/up/bias", inner_width))
        cubed = b.op("mul", b.op("mul", b.op("square", inner), inner), 0.044715)
        bent = b.op("add", b.op("tanh", b.op("mul", b.op("add", inner, cubed), 0.797)), 1.0)
        gelu = b.op("mul", b.op("mul", inner, 0.5), bent)
        down = s.matmul(gelu, s.variable(f"{folder}/down/kernel", inner_width, WIDTH))
        stream = b.op("add", stream, s.dropout(down, number))
        parts = ("norm/gamma", "norm/beta", "up/kernel", "up/bias", "down/kernel")
        names += [f"{folder}/{part}" for part in parts]
    loss = b.op("mean", b.op("square", stream), axes=(0, 1), keepdims=False)
    s.momentum(loss, names, clip)
    return s.done(loss=loss)


def starting_values(step: StepGraph, seed: int = 0) -> Arrays:
    """Values for every variable."""
    random = np.random.default_rng(seed)
    found = {}
    for name, spec in step.specs.items():
        scale = 0.0 if "Momentum" in name else 0.2
        found[name] = (scale * random.standard_normal(spec.type.shape)).astype(
            spec.type.numpy_dtype
        )
    return found


def features_of(step: StepGraph, seed: int = 1, unknown: int = 5) -> Arrays:
    """Random values for every feature; dimensions not known are `unknown`."""
    random = np.random.default_rng(seed)
    found = {}
    for name, value in step.features.items():
        shape = tuple(unknown if dim is None else dim for dim in value.shape)
        found[name] = random.standard_normal(shape).astype(value.type.numpy_dtype)
    return found


def expected(step: StepGraph, variables: Arrays, steps: Sequence[Arrays]) -> tuple[Arrays, Arrays]:
    """Results of the last step and variables after it, by the plain kernels.

    Args:
        step: consumed.
        variables: values at the start; not changed.
        steps: the features of every step.
    """
    differentiate(step.graph)
    state = dict(variables)
    results: Arrays = {}
    for features in steps:
        arrays = [{**features, **state}[value.name] for value in step.graph.inputs]
        outputs = run_plain(step.graph, arrays)
        count = len(step.updates)
        state.update(zip(step.updates, outputs[:count]))
        results = dict(zip(step.results, outputs[count:]))
    return results, state
