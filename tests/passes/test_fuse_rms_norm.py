"""RMS norm is recognised however it is written, and nothing else is taken for it."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.passes.differentiate import differentiate
from cerebras_tf.passes.fuse_rms_norm import add_in_gradient, fuse_rms_norm
from tests.graphs import check_pass, graph_of, ops_of, random_inputs, run_plain

TYPES = ("float32[2,3,8]", "float32[8]")
NORM = (1e-5, 1e-5)


def root(b, square, op="rsqrt", axes=(2,)):
    mean = b.op("mean", square, axes=axes, keepdims=True)
    return b.op(op, b.op("add", mean, 1e-5))


def llama(b, x, gamma):
    return b.op("mul", gamma, b.op("mul", x, root(b, b.op("pow", x, 2.0))))


def of_torch(b, x, gamma):
    return b.op("mul", b.op("mul", x, root(b, b.op("square", x))), gamma)


def by_division(b, x, gamma):
    return b.op("mul", b.op("div", x, root(b, b.op("mul", x, x), "sqrt")), gamma)


def gemma(b, x, gamma):
    unit = b.op("mul", x, root(b, b.op("square", x)))
    return b.op("mul", unit, b.op("add", gamma, 1.0))


def without_gamma(b, x, gamma):
    return b.op("mul", x, root(b, b.op("square", x)))


FORMS = {llama: [], of_torch: [], by_division: [], gemma: ["add"], without_gamma: []}


@pytest.mark.parametrize("form", FORMS, ids=[form.__name__ for form in FORMS])
def test_rms_norm_is_recognised(form):
    graph = graph_of(form, *TYPES)
    assert check_pass(graph, fuse_rms_norm, close=NORM) == [*FORMS[form], "rms_norm"]
    assert graph.nodes[-1].attrs["epsilon"] == pytest.approx(1e-5)


def test_statistics_and_units_used_elsewhere_stay_too():
    def build(b, x, gamma):
        r = root(b, b.op("square", x))
        unit = b.op("mul", x, r)
        return b.op("mul", unit, gamma), b.op("neg", unit), r

    ops = check_pass(graph_of(build, *TYPES), fuse_rms_norm, close=NORM)
    assert sorted(ops) == ["add", "mean", "mul", "neg", "rms_norm", "rsqrt", "square"]


def other_axis(b, x, gamma):
    return b.op("mul", b.op("mul", x, root(b, b.op("square", x), axes=(1,))), gamma)


def another_x(b, x, gamma):
    return b.op("mul", b.op("mul", b.op("exp", x), root(b, b.op("square", x))), gamma)


def not_a_square(b, x, gamma):
    return b.op("mul", b.op("mul", x, root(b, b.op("pow", b.op("abs", x), 3.0))), gamma)


def inverse(b, x, gamma):
    return b.op("mul", b.op("mul", x, root(b, b.op("square", x), "sqrt")), gamma)


OTHERS = [other_axis, another_x, not_a_square, inverse]


@pytest.mark.parametrize("form", OTHERS, ids=[form.__name__ for form in OTHERS])
def test_what_is_not_an_rms_norm_stays(form):
    assert "rms_norm" not in check_pass(graph_of(form, *TYPES), fuse_rms_norm, close=NORM)


def test_a_norm_stays_where_a_gradient_is_taken_by_its_root():
    def build(b, x, gamma):
        r = root(b, b.op("square", x))
        y = b.op("mul", b.op("mul", x, r), gamma)
        return b.multi("gradient", y, y, r, ys=1, dys=(True,), xs=1)

    graph = graph_of(build, *TYPES)
    fuse_rms_norm(graph)
    assert "rms_norm" not in ops_of(graph)


def residual(b, x, gamma, weight):
    """The gradients of x and gamma of a norm that a residual connection passes by."""
    h = b.op("mul", x, weight)
    y = b.op("add", h, b.op("sin", llama(b, h, gamma)))
    return b.multi("gradient", y, y, x, gamma, ys=1, dys=(True,), xs=2)


def test_the_gradient_of_a_residual_is_added_by_that_of_the_norm():
    graph = graph_of(residual, *TYPES, "float32[8]")
    plain = graph_of(residual, *TYPES, "float32[8]")
    differentiate(plain)
    fuse_rms_norm(graph)
    differentiate(graph)
    assert "add" in ops_of(graph)
    ops = check_pass(graph, add_in_gradient, close=NORM)
    assert "add" not in ops[ops.index("rms_norm_grad") :]
    arrays = random_inputs(plain)
    for found, wanted in zip(run_plain(graph, arrays), run_plain(plain, arrays)):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
