"""Kernels are chosen once: compiled where it fits, else plain; and results own their memory."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.compiler.assemble import assemble_region
from cerebras_tf.errors import ConfigError, UnsupportedOpError
from cerebras_tf.ir import Graph, TensorType
from cerebras_tf.ir.program import Instruction
from cerebras_tf.kernels import cpu_kernels, instruction_set
from cerebras_tf.kernels.registry import COMPILED, CompiledKernel
from cerebras_tf.ops.cost import price
from cerebras_tf.runtime.cpu import CpuBackend
from cerebras_tf.runtime.dispatch import graph_call
from tests.graphs import graph_of, random_inputs, run_plain

F4 = TensorType("float32", (4,))
UNKNOWN = TensorType("float32", (None,))


load = CpuBackend().load


def instruction(op, **attrs):
    return Instruction(op, (), (), attrs, "tower/Op")


def test_instructions_that_are_none_are_refused_in_every_precision(monkeypatch):
    monkeypatch.setenv(instruction_set.VARIABLE, "avx")
    with pytest.raises(ConfigError, match="one of baseline, .*amx.*'avx'"):
        CpuBackend()
    monkeypatch.setenv(instruction_set.VARIABLE, "none")
    CpuBackend()


@pytest.fixture
def compiled(monkeypatch):
    """A compiled form of exp, for operands of 4 elements, that answers 7."""

    def fill(x, out):
        out[0][...] = 7

    kernel = CompiledKernel(fill, lambda x, **attrs: x.shape == (4,))
    monkeypatch.setitem(COMPILED, "exp", kernel)


def call(op, inputs, types, out_types, **attrs):
    out = [np.empty(t.shape, t.numpy_dtype) if t.is_static else None for t in out_types]
    return out, load(instruction(op, **attrs), types, out_types)(inputs, out)


def test_a_compiled_kernel_is_taken_where_it_fits(compiled):
    out, results = call("exp", [np.zeros(4, np.float32)], [F4], [F4])
    np.testing.assert_array_equal(results[0], np.full(4, 7))
    assert results[0] is out[0]


def test_the_plain_kernel_is_taken_for_other_operands(compiled):
    five = TensorType("float32", (5,))
    out, results = call("exp", [np.zeros(5, np.float32)], [five], [five])
    np.testing.assert_array_equal(results[0], np.ones(5))
    assert results[0] is out[0]


def test_the_plain_kernel_is_taken_where_a_size_is_unknown(compiled):
    _, results = call("exp", [np.zeros(4, np.float32)], [UNKNOWN], [UNKNOWN])
    np.testing.assert_array_equal(results[0], np.ones(4))


def test_an_op_without_a_kernel_is_named_when_the_program_loads():
    with pytest.raises(UnsupportedOpError, match=r"op frobnicate \('tower/Op'\): must have a ker"):
        load(instruction("frobnicate"), [F4], [F4])


def branches():
    then = graph_of(lambda b, x: (b.op("exp", x), x), "float32[4]")
    orelse = graph_of(lambda b, x: (x, b.op("neg", x)), "float32[4]")
    return {"then": assemble_region(then, price), "orelse": assemble_region(orelse, price)}


@pytest.mark.parametrize("way", [True, False])
def test_cond_runs_the_branch_taken(way):
    x = np.arange(4, dtype=np.float32)
    bool_type = TensorType("bool", ())
    _, results = call("cond", [np.array(way), x], [bool_type, F4], [F4, F4], **branches())
    wanted = (np.exp(x), x) if way else (x, -x)
    for ours, theirs in zip(results, wanted):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_a_branch_that_returns_its_operand_gives_a_copy():
    """The operand's memory is used anew while the result is still wanted."""
    x = np.arange(4, dtype=np.float32)
    types = [TensorType("bool", ()), F4]
    _, results = call("cond", [np.array(True), x], types, [UNKNOWN, UNKNOWN], **branches())
    assert not np.shares_memory(results[1], x)


def test_a_result_of_unknown_size_that_is_its_operand_is_copied():
    x = np.arange(8, dtype=np.float32)
    _, results = call("identity", [x], [TensorType("float32", (8,))], [UNKNOWN])
    assert not np.shares_memory(results[0], x)


def test_a_view_is_not_copied():
    x = np.arange(8, dtype=np.float32)
    types = [TensorType("float32", (8,))]
    found = load(instruction("reshape", shape=(2, 4)), types, [TensorType("float32", (2, 4))])
    (result,) = found([x], [None])
    assert np.shares_memory(result, x)


def test_outputs_may_be_written_over_each_others_operands():
    """Two variables that swap in place, through the plain kernels."""
    graph = graph_of(
        lambda b, x, y: (b.op("identity", y), b.op("identity", x)), "float32[4]", "float32[4]"
    )
    x, y = np.zeros(4, np.float32), np.ones(4, np.float32)
    types = [TensorType("bool", ()), F4, F4]
    branch = assemble_region(graph, price)
    swap = load(instruction("cond", then=branch, orelse=branch), types, [F4, F4])
    swap([np.array(True), x, y], [x, y])
    np.testing.assert_array_equal(x, np.ones(4))
    np.testing.assert_array_equal(y, np.zeros(4))


def test_a_graph_run_node_by_node_equals_the_plain_kernels():
    def build(b, x):
        y = b.op("tanh", b.op("matmul", x, x, transpose_a=False, transpose_b=True))
        return b.op("softmax", y), b.op("sum", y, axes=(0,), keepdims=True)

    graph = graph_of(build, "float32[3,4]")
    arrays = random_inputs(graph)
    for ours, theirs in zip(graph_call(graph, cpu_kernels())(*arrays), run_plain(graph, arrays)):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_a_graph_of_nothing_gives_its_inputs():
    graph = Graph()
    graph.outputs = [graph.add_input("x", F4)]
    x = np.ones(4, np.float32)
    assert graph_call(graph, cpu_kernels())(x)[0] is x
