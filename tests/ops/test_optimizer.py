"""Optimizer steps built without TensorFlow, as another front end would, against NumPy."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from cerebras_tf.ir import Graph, TensorType, verify
from cerebras_tf.ops import Builder, infer, optimizer
from cerebras_tf.ops.expression import Expression
from cerebras_tf.passes.differentiate import differentiate
from tests.graphs import graph_of, run_plain

CLOSE = {"rtol": 2e-5, "atol": 1e-6}
BETA1, BETA2, EPSILON, DECAY, RATE = 0.8, 0.95, 1e-3, 0.02, 0.05
POWERS = {"beta1_power": BETA1, "beta2_power": BETA2}
ADAM = {"lr": RATE, "beta1": BETA1, "beta2": BETA2, "epsilon": EPSILON}
RANDOM = np.random.default_rng(7)
START = RANDOM.standard_normal((5, 3)).astype(np.float32)
BATCHES = [RANDOM.standard_normal((8, 5)).astype(np.float32) for _ in range(4)]
TARGET = RANDOM.standard_normal((8, 3)).astype(np.float32)


def regression(formula, slots):
    """A step of linear regression: x, `var` and slots in, their new values out; slots' names."""
    graph = Graph("regression")
    b = Builder(graph)
    x = graph.add_input("x", TensorType("float32", (8, 5)))
    held = {
        name: graph.add_input(name, TensorType("float32", () if "power" in name else (5, 3)))
        for name in ("var", *slots)
    }
    product = b.op("matmul", x, held["var"], transpose_a=False, transpose_b=False)
    error = b.op("square", b.op("sub", product, TARGET))
    loss = b.op("mean", error, axes=(0, 1), keepdims=False)
    (grad,) = b.multi("gradient", loss, held["var"], ys=1, dys=(False,), xs=1)
    given = {name: Expression(b, value) for name, value in {**held, "grad": grad}.items()}
    updates = formula(**given)
    for name, beta in POWERS.items():
        if name in held:
            updates[name] = given[name] * beta
    graph.outputs = [new.value for new in updates.values()]
    differentiate(graph)
    verify(graph, infer)
    return graph, list(updates)


def trained(formula, *slots):
    """`var` after a step on each of the batches; slots start at 0, powers at the first one."""
    graph, updated = regression(formula, slots)
    starts = {name: np.float32(POWERS[name]) if name in POWERS else 0 * START for name in slots}
    state = {"var": START, **starts}
    for batch in BATCHES:
        arrays = [{"x": batch, **state}[value.name] for value in graph.inputs]
        state.update(zip(updated, run_plain(graph, arrays)))
    return state["var"]


def expected(move):
    """`var` after move(number of the step from 1, var, gradient) on each of the batches."""
    var = START.astype(np.float64)
    for number, batch in enumerate(BATCHES, 1):
        var = move(number, var, batch.T @ (batch @ var - TARGET) * 2 / TARGET.size)
    return var


class Averages:
    """Adam's corrected averages in float64: m' / (sqrt(v') + epsilon)."""

    def __init__(self):
        self.m = self.v = 0.0

    def direction(self, number, grad):
        self.m = BETA1 * self.m + (1 - BETA1) * grad
        self.v = BETA2 * self.v + (1 - BETA2) * grad**2
        m, v = self.m / (1 - BETA1**number), self.v / (1 - BETA2**number)
        return m / (np.sqrt(v) + EPSILON)


def test_gradient_descent_trains_as_in_numpy():
    ours = trained(partial(optimizer.gradient_descent, lr=RATE))
    np.testing.assert_allclose(ours, expected(lambda _, var, g: var - RATE * g), **CLOSE)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("formula", [optimizer.momentum, optimizer.keras_momentum])
def test_both_forms_of_momentum_are_one_while_the_rate_is_constant(formula, nesterov):
    accum = 0.0

    def move(_, var, grad):
        nonlocal accum
        accum = 0.9 * accum + grad
        return var - RATE * (grad + 0.9 * accum if nesterov else accum)

    ours = trained(partial(formula, lr=RATE, momentum=0.9, use_nesterov=nesterov), "accum")
    np.testing.assert_allclose(ours, expected(move), **CLOSE)


def test_adam_leaves_its_epsilon_uncorrected():
    averages = Averages()

    def move(number, var, grad):
        averages.direction(number, grad)
        rate = RATE * np.sqrt(1 - BETA2**number) / (1 - BETA1**number)
        return var - rate * averages.m / (np.sqrt(averages.v) + EPSILON)

    ours = trained(partial(optimizer.adam, **ADAM), "m", "v", *POWERS)
    np.testing.assert_allclose(ours, expected(move), **CLOSE)


def test_adamw_trains_as_in_numpy():
    averages = Averages()

    def move(number, var, grad):
        return var - RATE * (averages.direction(number, grad) + DECAY * var)

    formula = partial(optimizer.adamw, weight_decay=DECAY, **ADAM)
    ours = trained(formula, "m", "v", *POWERS)
    np.testing.assert_allclose(ours, expected(move), **CLOSE)


def test_lamb_trains_as_in_numpy():
    averages = Averages()

    def move(number, var, grad):
        update = averages.direction(number, grad) + DECAY * var
        return var - RATE * np.linalg.norm(var) / np.linalg.norm(update) * update

    formula = partial(optimizer.lamb, weight_decay=DECAY, **ADAM)
    ours = trained(formula, "m", "v", *POWERS)
    np.testing.assert_allclose(ours, expected(move), **CLOSE)


@pytest.mark.parametrize("zero", ["var", "grad"])
def test_lamb_does_not_scale_the_step_where_a_norm_is_zero(zero):
    """Neither a variable that starts at 0 may stay there, nor one without a gradient become NaN."""
    arrays = {name: np.zeros(3, np.float32) for name in ("var", "m", "v", "grad")}
    for name in {"var", "grad"} - {zero}:
        arrays[name] += 0.5
    arrays.update((name, np.float32(beta)) for name, beta in POWERS.items())

    def build(b, *inputs):
        given = {name: Expression(b, value) for name, value in zip(arrays, inputs)}
        return optimizer.lamb(**given, **ADAM, weight_decay=0.0)["var"].value

    graph = graph_of(build, *["float32[3]"] * 4, "float32[]", "float32[]")
    (var,) = run_plain(graph, list(arrays.values()))
    moved = -RATE * 0.5 / (0.5 + EPSILON) if zero == "var" else 0.5
    np.testing.assert_allclose(var, np.full(3, moved), rtol=1e-5)


def test_rows_gathered_of_a_table_move_as_the_whole_would():
    """The way of a sparse gradient: gather, the formula, rows_update; other rows stay."""
    ids, rate = np.array([4, 1], np.int32), 0.1
    accum, grad = abs(START) + 1, START[[2, 0]]

    def build(b, table, slot, rows):
        whole = {"var": table, "accum": slot}
        given = {
            name: Expression(b, b.op("gather", value, ids, axis=0, batch_dims=0))
            for name, value in whole.items()
        }
        new = optimizer.adagrad(grad=Expression(b, rows), lr=rate, **given)
        return [b.op("rows_update", whole[name], ids, new[name].value) for name in whole]

    graph = graph_of(build, "float32[5,3]", "float32[5,3]", "float32[2,3]")
    table, slot = run_plain(graph, [START, accum, grad])
    squares, wanted = accum.copy(), START.copy()
    squares[ids] += grad**2
    wanted[ids] -= rate * grad / np.sqrt(squares[ids])
    np.testing.assert_allclose(table, wanted, rtol=1e-6)
    np.testing.assert_allclose(slot, squares, rtol=1e-6)


def test_slots_that_do_not_move_are_not_returned():
    b = Builder(Graph())
    x = Expression(b, b.graph.add_input("x", TensorType("float32", (3,))))
    assert set(optimizer.adagrad(x, x, x, 0.1, update_slots=False)) == {"var"}
    assert set(optimizer.adam(x, x, x, x, 0.1, 0.9, 0.99, x, x, 1e-8)) == {"var", "m", "v"}


VAR = np.array([0.3, -0.2, 1.5, -0.04], np.float32)
GRAD = np.array([0.5, -0.25, 1.0, 0.1], np.float32)


def moved(formula, arrays, **rates):
    """New value of `var`; arrays are float32 vectors by the names of the formula's parameters."""

    def build(b, *inputs):
        given = {name: Expression(b, value) for name, value in zip(arrays, inputs)}
        return formula(**given, **rates)["var"].value

    graph = graph_of(build, *["float32[4]"] * len(arrays))
    return run_plain(graph, list(arrays.values()))[0]


def test_a_proximal_step_sets_small_weights_to_exactly_zero():
    given = {"var": VAR, "grad": GRAD}
    ours = moved(optimizer.proximal_gradient_descent, given, lr=0.1, l1=1.0, l2=2.0)
    step = VAR - 0.1 * GRAD
    wanted = np.sign(step) * np.maximum(abs(step) - 0.1, 0) / 1.2
    np.testing.assert_allclose(ours, wanted, rtol=1e-6)
    assert ours[3] == 0 and np.count_nonzero(ours) == 3


def test_proximal_adagrad_shrinks_by_the_rate_of_every_element():
    accum = np.array([0.1, 0.4, 2.0, 30.0], np.float32)
    given = {"var": VAR, "accum": accum, "grad": GRAD}
    ours = moved(optimizer.proximal_adagrad, given, lr=0.1, l1=0.2, l2=2.0)
    rate = 0.1 / np.sqrt(accum + GRAD**2)
    step = VAR - rate * GRAD
    wanted = np.sign(step) * np.maximum(abs(step) - rate * 0.2, 0) / (1 + rate * 2.0)
    np.testing.assert_allclose(ours, wanted, rtol=2e-6)


@pytest.mark.parametrize("multiplied", [False, True])
def test_ftrl_gives_zero_where_no_gradient_has_come_yet(multiplied):
    """There numerator and denominator are 0."""
    zeros = np.zeros_like(VAR)
    given = {"var": VAR, "accum": zeros, "linear": zeros, "grad": zeros}
    rates = {"lr": 0.1, "l1": 0.0, "l2": 0.0, "lr_power": -0.5}
    ours = moved(optimizer.ftrl, given, **rates, multiply_linear_by_lr=multiplied)
    np.testing.assert_array_equal(ours, zeros)


@pytest.mark.parametrize("multiplied", [False, True])
def test_ftrl_shrinks_by_l1_l2_and_the_shrinkage_of_the_loss(multiplied):
    accum = np.array([0.1, 0.4, 2.0, 30.0], np.float32)
    lr, l1, l2, extra = 0.1, 0.7, 0.3, 0.05
    new = accum + GRAD**2
    linear = GRAD + 2 * extra * VAR - (np.sqrt(new) - np.sqrt(accum)) / lr * VAR
    wanted = (l1 * np.sign(linear) - linear) / (np.sqrt(new) / lr + 2 * l2)
    wanted[abs(linear) <= l1] = 0
    assert 0 < np.count_nonzero(wanted) < 4
    given = {"var": VAR, "accum": accum, "linear": 0 * VAR, "grad": GRAD}
    rates = {"lr": lr, "l1": l1, "l2": l2, "lr_power": -0.5, "l2_shrinkage": extra}
    ours = moved(optimizer.ftrl, given, **rates, multiply_linear_by_lr=multiplied)
    np.testing.assert_allclose(ours, wanted, rtol=1e-5)
