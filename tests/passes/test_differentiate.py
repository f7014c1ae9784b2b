"""The reverse pass against central differences in float64, and what must not be differentiated."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from cerebras_tf.errors import GradientError, UnsupportedOpError
from cerebras_tf.ir import Graph, parse_type, verify
from cerebras_tf.ops import OPS, Builder, infer
from cerebras_tf.ops.slicing import cut
from cerebras_tf.passes.differentiate import differentiate
from tests.differences import slope
from tests.graphs import graph_of, ops_of, random_inputs, run_plain
from tests.messages import raises

D4 = "float64[4]"


def gradient(b, ys, xs, dys=None, stops=()):
    """A recorded gradient node; `dys` holds a value or None for every y."""
    given = [None] * len(ys) if dys is None else dys
    operands = [*ys, *(dy for dy in given if dy is not None), *xs, *stops]
    has = tuple(dy is not None for dy in given)
    return b.multi("gradient", *operands, ys=len(ys), dys=has, xs=len(xs))


def total(b, x):
    return b.op("sum", x, axes=tuple(range(x.type.rank)), keepdims=False)


def results(build, *types, arrays=None, seed=0):
    """Inputs and differentiated outputs of a graph."""
    graph = graph_of(build, *types)
    differentiate(graph)
    verify(graph, infer)
    assert "gradient" not in ops_of(graph)
    arrays = random_inputs(graph, seed) if arrays is None else arrays
    return arrays, run_plain(graph, arrays)


def check_by_differences(function, *types, arrays=None, seed=0):
    """Asserts that d function / d x of every float input is the limit of differences."""
    plain = graph_of(function, *types)
    arrays = random_inputs(plain, seed) if arrays is None else arrays
    floats = [i for i, value in enumerate(plain.inputs) if value.type.is_floating]

    def build(b, *xs):
        y = function(b, *xs)
        return gradient(b, [y], [xs[i] for i in floats])

    _, found = results(build, *types, arrays=arrays)
    random = np.random.default_rng(seed + 1)
    for i, dx in zip(floats, found):
        assert dx.shape == arrays[i].shape
        direction = random.standard_normal(arrays[i].shape)
        expected = slope(lambda moved: run_plain(plain, moved)[0], arrays, i, direction)
        np.testing.assert_allclose(np.sum(dx * direction), expected, rtol=1e-5, atol=1e-6)


UNARY = ("tanh", "sigmoid", "sin", "softplus", "square", "neg", "erf", "exp")
BINARY = ("add", "sub", "mul", "squared_difference")


def random_function(seed):
    """A smooth random function of a vector, a matrix and a scalar; values are used repeatedly."""

    def function(b, *xs):
        random = np.random.default_rng(seed)
        pool = list(xs)
        for _ in range(12):
            kind = random.integers(0, 5)
            x, y = (pool[i] for i in random.integers(0, len(pool), 2))
            if kind <= 1:
                op = str(random.choice(UNARY))
                pool.append(b.op(op, b.op("tanh", x)))
            elif kind == 2:
                pool.append(b.op("tanh", b.op(str(random.choice(BINARY)), x, y)))
            elif kind == 3:
                wide = next(v for v in reversed(pool) if v.type.rank == 2)
                other = b.op("matmul", wide, wide, transpose_a=False, transpose_b=True)
                joined = b.op("matmul", other, wide, transpose_a=False, transpose_b=False)
                pool.append(b.op("softmax", joined))
            else:
                wide = next(v for v in reversed(pool) if v.type.rank == 2)
                pool.append(b.op("mean", wide, axes=(0,), keepdims=False))
        parts = [total(b, value) for value in pool[-4:]]
        for part in parts[1:]:
            parts[0] = b.op("add", parts[0], b.op("tanh", part))
        return parts[0]

    return function


@pytest.mark.parametrize("seed", range(25))
def test_random_functions_have_the_gradient_of_differences(seed):
    check_by_differences(random_function(seed), "float64[3,4]", D4, "float64[]", seed=seed)


def several_uses(b, x):
    return gradient(b, [b.op("mul", x, b.op("add", x, b.op("sin", x)))], [x])


def stops(b, x):
    middle = b.op("square", x)
    return gradient(b, [b.op("mul", middle, x)], [x], stops=[middle])


def stop_gradient(b, x):
    return gradient(b, [b.op("mul", b.op("stop_gradient", b.op("exp", x)), x)], [x])


def inside_and_input(b, x):
    middle = b.op("square", x)
    return gradient(b, [b.op("exp", middle)], [x, middle])


def of_a_gradient(b, x):
    (once,) = gradient(b, [b.op("sin", b.op("square", x))], [x])
    return gradient(b, [once], [x])


CLOSED_FORMS = {
    several_uses: lambda x: [2 * x + np.sin(x) + x * np.cos(x)],
    inside_and_input: lambda x: [2 * x * np.exp(x * x), np.exp(x * x)],
    stops: lambda x: [x * x],
    stop_gradient: lambda x: [np.exp(x)],
    of_a_gradient: lambda x: [2 * np.cos(x * x) - 4 * x * x * np.sin(x * x)],
}


@pytest.mark.parametrize("build", CLOSED_FORMS)
def test_gradients_have_their_closed_forms(build):
    (x,), found = results(build, D4)
    for dx, expected in zip(found, CLOSED_FORMS[build](x)):
        np.testing.assert_allclose(dx, expected)


def test_several_ys_add_up_with_the_cotangents_given():
    def build(b, x, dy):
        return gradient(b, [b.op("square", x), b.op("exp", x)], [x], [dy, None])

    (x, dy), (dx,) = results(build, D4, D4)
    np.testing.assert_allclose(dx, 2 * x * dy + np.exp(x))


def test_by_a_value_the_ys_do_not_depend_on_is_zero():
    _, (dx, dz) = results(lambda b, x, z: gradient(b, [b.op("exp", x)], [x, z]), D4, "float64[2,3]")
    np.testing.assert_array_equal(dz, np.zeros((2, 3)))
    assert np.all(dx > 0)


def test_y_by_itself_is_its_cotangent():
    _, (dx,) = results(lambda b, x: gradient(b, [x], [x]), D4)
    np.testing.assert_array_equal(dx, np.ones(4))


def test_zeros_of_unknown_size_do_not_read_the_values():
    """0 * inf would be nan."""
    arrays = [np.array([np.inf, np.nan, 1.0]), np.ones(2)]
    _, (dz,) = results(
        lambda b, x, z: gradient(b, [z], [x]), "float64[?]", "float64[2]", arrays=arrays
    )
    np.testing.assert_array_equal(dz, np.zeros(3))


def test_several_calls_in_one_graph_do_not_disturb_each_other():
    def build(b, x, z):
        first = b.op("mul", x, z)
        (dx,) = gradient(b, [first], [x])
        second = b.op("add", b.op("exp", first), dx)
        return dx, *gradient(b, [second], [z])

    (x, z), (dx, dz) = results(build, D4, D4)
    np.testing.assert_allclose(dx, z)
    np.testing.assert_allclose(dz, x * np.exp(x * z) + 1)


def conditional(b, p, *xs):
    """exp(x) * y, x or sin(x), y * y."""
    types = [str(x.type) for x in xs]
    graphs = {
        "then": graph_of(lambda i, x, y: (i.op("mul", i.op("exp", x), y), x), *types),
        "orelse": graph_of(lambda i, x, y: (i.op("sin", x), i.op("square", y)), *types),
    }
    return b.multi("cond", p, *xs, **graphs)


@pytest.mark.parametrize("way", [True, False])
def test_cond_is_differentiated_along_the_branch_taken(way):
    def function(b, p, x, y):
        first, second = conditional(b, p, x, y)
        return total(b, b.op("mul", first, b.op("add", second, x)))

    random = np.random.default_rng(5)
    arrays = [np.array(way), random.standard_normal(4), random.standard_normal(4)]
    check_by_differences(function, "bool[]", D4, D4, arrays=arrays)


def test_only_the_branch_taken_touches_the_gradient():
    """The other one divides by zero: selecting after the division would give nan."""

    def build(b, p, x):
        graphs = {
            "then": graph_of(lambda i, v: i.op("div", v, total(i, v)), D4),
            "orelse": graph_of(lambda i, v: i.op("mul", v, 2.0), D4),
        }
        return gradient(b, b.multi("cond", p, x, **graphs), [x])

    _, (dx,) = results(build, "bool[]", D4, arrays=[np.array(False), np.zeros(4)])
    np.testing.assert_array_equal(dx, np.full(4, 2.0))


def test_custom_gradient_uses_the_gradient_it_is_given():
    """y = x with the gradient clipped to [-1, 1] and scaled by a captured value."""

    def backward(b, scale, dy):
        clipped = b.op("minimum", b.op("maximum", dy, -1.0), 1.0)
        return b.op("mul", clipped, scale)

    def build(b, x, scale):
        y = b.op("custom_gradient", x, scale, xs=1, gives=(0,), backward=graph_of(backward, D4, D4))
        return gradient(b, [b.op("mul", y, np.array([5.0, -5.0, 0.5, 0.0]))], [x])

    (_, scale), (dx,) = results(build, D4, D4)
    np.testing.assert_allclose(dx, np.array([1, -1, 0.5, 0]) * scale)


def test_nodes_are_marked_backward_with_the_layer_they_differentiate():
    def build(b, x):
        b.layer = 0
        first = b.op("exp", x)
        b.layer = 1
        second = b.op("square", first)
        b.layer = -1
        return gradient(b, [second], [x])

    graph = graph_of(build, D4)
    differentiate(graph)
    made = [node for node in graph.nodes if node.direction == "backward"]
    layers = [node.layer for node in made if node.layer >= 0]
    assert layers == sorted(layers, reverse=True)
    assert set(layers) == {0, 1}


def test_integers_get_no_cotangent():
    def build(b, table, rows):
        return gradient(b, [b.op("gather", table, rows, axis=0, batch_dims=0)], [table])

    arrays = [np.arange(6.0).reshape(3, 2), np.array([2, 2, 0], np.int32)]
    _, (dtable,) = results(build, "float64[3,2]", "int32[3]", arrays=arrays)
    np.testing.assert_array_equal(dtable, [[1, 1], [0, 0], [2, 2]])


def test_every_op_without_a_rule_is_listed(monkeypatch):
    def without_rule(name):
        definition = OPS["tanh"]
        return dataclasses.replace(definition, name=name, vjp=None)

    for name in ("first_missing", "second_missing", "not_on_the_way"):
        monkeypatch.setitem(OPS, name, without_rule(name))

    def build(b, x, z):
        b.source = "tower/First"
        first = b.op("first_missing", x)
        b.source = "tower/Second"
        y = b.op("second_missing", b.op("exp", first))
        side = b.op("not_on_the_way", z)
        return gradient(b, [b.op("mul", y, side)], [x])

    graph = graph_of(build, D4, D4)
    with pytest.raises(GradientError) as caught:
        differentiate(graph)
    assert "first_missing ('tower/First'), second_missing ('tower/Second')" in str(caught.value)
    assert "not_on_the_way" not in str(caught.value)


def test_a_rule_that_cannot_be_followed_is_a_missing_one(monkeypatch):
    def refuse(b, node, dys):
        raise UnsupportedOpError("gradient of exp: must be ours. Received: yours. Change it.")

    monkeypatch.setitem(OPS, "exp", dataclasses.replace(OPS["exp"], vjp=refuse))
    graph = graph_of(lambda b, x: gradient(b, [b.op("exp", x)], [x]), D4)
    with raises(GradientError, "gradient of exp"):
        differentiate(graph)


def test_a_graph_without_gradients_is_left_alone():
    graph = graph_of(lambda b, x: b.op("exp", x), D4)
    before = str(graph)
    differentiate(graph)
    assert str(graph) == before


def own_backward(b, x):
    """exp(x) kept as it is, whose own gradient takes the gradient of sin(x) instead."""
    backward = Graph("backward")
    inner = Builder(backward)
    held, dy = (backward.add_input(name, parse_type(D4)) for name in ("held", "dy"))
    backward.outputs = gradient(inner, [inner.op("sin", held)], [held], [dy])
    return b.op("custom_gradient", b.op("exp", x), x, xs=1, gives=(1,), backward=backward)


def test_gradients_inside_of_a_custom_gradient_are_written_out():
    (x,), (dx,) = results(lambda b, x: gradient(b, [own_backward(b, x)], [x]), D4)
    np.testing.assert_allclose(dx, np.cos(x))


def test_a_gradient_of_what_a_custom_gradient_differentiated():
    def build(b, x):
        (dx,) = gradient(b, [own_backward(b, x)], [x])
        return gradient(b, [dx], [x])

    (x,), (twice,) = results(build, D4)
    np.testing.assert_allclose(twice, -np.sin(x))


@pytest.mark.parametrize(
    "cuts,joined",
    [
        ([(0, 3), (3, 1), (4, 2)], 1),
        ([(4, 2), (0, 4)], 1),
        ([(0, 3), (4, 2)], 0),
        ([(0, 4), (2, 4)], 0),
    ],
)
def test_gradients_of_slices_that_make_up_a_value_are_concatenated(cuts, joined):
    def function(b, x):
        square, out = b.op("square", x), b.constant(np.float64(0))
        for start, size in cuts:
            out = b.op("add", out, total(b, b.op("exp", cut(b, square, 1, start, size))))
        return b.op("add", out, total(b, square))

    check_by_differences(function, "float64[2,6]")
    graph = graph_of(lambda b, x: gradient(b, [function(b, x)], [x]), "float64[2,6]")
    differentiate(graph)
    graph.prune()
    assert ops_of(graph).count("concat") == joined
    assert ops_of(graph).count("pad") == (0 if joined else len(cuts))
