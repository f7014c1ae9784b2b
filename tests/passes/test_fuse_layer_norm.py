"""Layer norm is recognised however it is written, and nothing else is taken for it."""

from __future__ import annotations

import pytest

from cerebras_tf.passes.fuse_layer_norm import fuse_layer_norm
from tests.graphs import check_pass, graph_of

TYPES = ("float32[2,3,8]", "float32[8]", "float32[8]")
NORM = (1e-4, 1e-5)


def statistics(b, x, axes=(2,), keepdims=True, stop=False):
    """(mean, variance) over axes; moments() of TensorFlow stops the mean inside the variance."""
    mean = b.op("mean", x, axes=axes, keepdims=keepdims)
    inside = b.op("stop_gradient", mean) if stop else mean
    difference = b.op("squared_difference", x, inside)
    return mean, b.op("mean", difference, axes=axes, keepdims=keepdims)


def textbook(b, x, gamma, beta):
    mean, variance = statistics(b, x)
    unit = b.op("mul", b.op("sub", x, mean), b.op("rsqrt", b.op("add", variance, 1e-5)))
    return b.op("add", b.op("mul", unit, gamma), beta)


def batch_normalization(b, x, gamma, beta):
    """tf.nn.batch_normalization: x (r g) + (b - m (r g))."""
    mean, variance = statistics(b, x, stop=True)
    scale = b.op("mul", b.op("rsqrt", b.op("add", variance, 1e-5)), gamma)
    return b.op("add", b.op("mul", x, scale), b.op("sub", beta, b.op("mul", mean, scale)))


def by_division(b, x, gamma, beta):
    mean, variance = statistics(b, x)
    unit = b.op("div", b.op("sub", x, mean), b.op("sqrt", b.op("add", variance, 1e-5)))
    return b.op("add", beta, b.op("mul", gamma, unit))


def square_of_difference(b, x, gamma, beta):
    mean = b.op("mean", x, axes=(2,), keepdims=True)
    centred = b.op("sub", x, mean)
    variance = b.op("mean", b.op("square", centred), axes=(2,), keepdims=True)
    unit = b.op("mul", centred, b.op("rsqrt", b.op("add", variance, 1e-5)))
    return b.op("add", b.op("mul", unit, gamma), beta)


FORMS = [textbook, batch_normalization, by_division, square_of_difference]


@pytest.mark.parametrize("form", FORMS, ids=[form.__name__ for form in FORMS])
def test_layer_norm_is_recognised(form):
    graph = graph_of(form, *TYPES)
    assert check_pass(graph, fuse_layer_norm, close=NORM) == ["layer_norm"]
    assert graph.nodes[-1].attrs["epsilon"] == pytest.approx(1e-5)


def test_gamma_and_beta_of_rank_three_are_reshaped():
    graph = graph_of(textbook, TYPES[0], "float32[1,1,8]", "float32[1,1,8]")
    ops = check_pass(graph, fuse_layer_norm, close=NORM)
    assert sorted(ops) == ["layer_norm", "reshape", "reshape"]


def test_every_norm_of_a_graph_is_recognised():
    def build(b, x, gamma, beta):
        return textbook(b, batch_normalization(b, b.op("neg", x), gamma, beta), beta, gamma)

    graph = graph_of(build, *TYPES)
    assert check_pass(graph, fuse_layer_norm, close=NORM) == ["neg", "layer_norm", "layer_norm"]


def test_statistics_used_elsewhere_stay_too():
    def build(b, x, gamma, beta):
        mean, variance = statistics(b, x)
        unit = b.op("mul", b.op("sub", x, mean), b.op("rsqrt", b.op("add", variance, 1e-5)))
        return b.op("add", b.op("mul", unit, gamma), beta), mean

    ops = check_pass(graph_of(build, *TYPES), fuse_layer_norm, close=NORM)
    assert sorted(ops) == ["layer_norm", "mean"]


def other_axis(b, x, gamma, beta):
    mean, variance = statistics(b, x, axes=(1,))
    unit = b.op("mul", b.op("sub", x, mean), b.op("rsqrt", b.op("add", variance, 1e-5)))
    return b.op("add", b.op("mul", unit, gamma), beta)


def two_axes(b, x, gamma, beta):
    mean, variance = statistics(b, x, axes=(1, 2))
    unit = b.op("mul", b.op("sub", x, mean), b.op("rsqrt", b.op("add", variance, 1e-5)))
    return b.op("add", b.op("mul", unit, gamma), beta)


def uncentred(b, x, gamma, beta):
    """RMS norm."""
    square = b.op("mean", b.op("square", x), axes=(2,), keepdims=True)
    unit = b.op("mul", x, b.op("rsqrt", b.op("add", square, 1e-5)))
    return b.op("add", b.op("mul", unit, gamma), beta)


def mean_added(b, x, gamma, beta):
    mean, variance = statistics(b, x)
    unit = b.op("mul", b.op("add", x, mean), b.op("rsqrt", b.op("add", variance, 1e-5)))
    return b.op("add", b.op("mul", unit, gamma), beta)


def another_x(b, x, gamma, beta):
    mean, variance = statistics(b, x)
    other = b.op("sub", b.op("exp", x), mean)
    unit = b.op("mul", other, b.op("rsqrt", b.op("add", variance, 1e-5)))
    return b.op("add", b.op("mul", unit, gamma), beta)


def beta_twice(b, x, gamma, beta):
    mean, variance = statistics(b, x)
    unit = b.op("mul", b.op("sub", x, mean), b.op("rsqrt", b.op("add", variance, 1e-5)))
    return b.op("add", b.op("mul", unit, gamma), b.op("add", beta, beta))


def of_the_deviation_alone(b, x, gamma, beta):
    """x r g - r r g + b."""
    _, variance = statistics(b, x)
    r = b.op("rsqrt", b.op("add", variance, 1e-5))
    unit = b.op("sub", b.op("mul", x, r), b.op("mul", r, r))
    return b.op("add", b.op("mul", unit, gamma), beta)


OTHERS = [other_axis, two_axes, uncentred, mean_added, another_x, of_the_deviation_alone]


@pytest.mark.parametrize("form", OTHERS, ids=[form.__name__ for form in OTHERS])
def test_what_is_not_layer_norm_stays(form):
    ops = check_pass(graph_of(form, *TYPES), fuse_layer_norm, close=NORM)
    assert "layer_norm" not in ops


@pytest.mark.parametrize("inner", ["mean", "add", "squared_difference"])
def test_statistics_that_a_gradient_is_taken_by_stay(inner):
    def build(b, x, gamma, beta):
        y = textbook(b, x, gamma, beta)
        made = [node for node in b.graph.nodes if node.op == inner][-1 if inner == "mean" else 0]
        return b.multi("gradient", y, y, made.output, ys=1, dys=(True,), xs=1)

    graph = graph_of(build, *TYPES)
    fuse_layer_norm(graph)
    assert not [node for node in graph.nodes if node.op == "layer_norm"]


def test_beta_that_is_a_sum_keeps_its_value():
    check_pass(graph_of(beta_twice, *TYPES), fuse_layer_norm, close=NORM)


def test_gamma_of_another_axis_stays():
    graph = graph_of(textbook, TYPES[0], "float32[3,1]", "float32[8]")
    assert "layer_norm" not in check_pass(graph, fuse_layer_norm, close=NORM)
