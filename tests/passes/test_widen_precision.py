"""Half precision becomes float32 inside, while inputs keep the type they are fed with."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.ir import verify
from cerebras_tf.ops import infer
from cerebras_tf.passes.simplify import simplify
from cerebras_tf.passes.widen_precision import widen_precision
from tests.graphs import canonical, check_pass, graph_of, ops_of, random_inputs, run_plain


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_computed_in_float32(dtype):
    graph = graph_of(lambda b, x: b.op("exp", b.op("mul", x, 1.5)), f"{dtype}[4]")
    arrays = random_inputs(graph)
    widen_precision(graph)
    verify(graph, infer)
    assert ops_of(graph) == ["cast", "mul", "exp"]
    assert {value.dtype for node in graph.nodes for value in node.outputs} == {"float32"}
    wanted = np.exp(arrays[0].astype(np.float32) * np.float32(1.5))
    np.testing.assert_allclose(run_plain(graph, arrays)[0], wanted, rtol=1e-6)


def test_inputs_keep_their_type():
    graph = graph_of(lambda b, x: b.op("neg", x), "float16[4]")
    widen_precision(graph)
    assert graph.inputs[0].dtype == "float16"


def test_casts_between_half_and_single_vanish():
    def build(b, x):
        half = b.op("cast", x, dtype="float16")
        return b.op("cast", b.op("mul", half, half), dtype="float32")

    graph = graph_of(build, "float32[4]")
    widen_precision(graph)
    simplify(graph)
    assert ops_of(graph) == ["mul"]


def test_values_beyond_half_precision_survive():
    graph = graph_of(lambda b, x: b.op("mul", b.op("mul", x, 300.0), 300.0), "float16[2]")
    widen_precision(graph)
    (result,) = run_plain(graph, [np.array([1, 2], np.float16)])
    np.testing.assert_array_equal(result, np.array([9e4, 1.8e5], np.float32))


def test_branches_are_widened():
    def build(b, p, x):
        then = graph_of(lambda b, x: b.op("exp", x), "float16[4]")
        orelse = graph_of(lambda b, x: b.op("neg", x), "float16[4]")
        return b.op("cond", p, x, then=then, orelse=orelse)

    graph = graph_of(build, "bool[]", "float16[4]")
    widen_precision(graph)
    verify(graph, infer)
    assert graph.outputs[0].dtype == "float32"


def test_an_input_that_is_also_an_output_is_widened():
    graph = graph_of(lambda b, x: x, "float16[4]")
    widen_precision(graph)
    verify(graph, infer)
    assert graph.outputs[0].dtype == "float32"


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_other_types_are_left_alone(dtype):
    graph = graph_of(lambda b, x: b.op("add", x, x), f"{dtype}[4]")
    before = canonical(graph)
    check_pass(graph, widen_precision)
    assert canonical(graph) == before
