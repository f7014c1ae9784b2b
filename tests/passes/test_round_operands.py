"""What only products in bfloat16 read from some point on rests rounded, and no number changes."""

from __future__ import annotations

import pytest

from cerebras_tf.compiler import pipeline, spilling
from cerebras_tf.compiler.fit_activations import Budget, SpillSpace
from cerebras_tf.compiler.order import assign_layers, order_nodes
from cerebras_tf.compiler.pipeline import Options, compile_step
from cerebras_tf.ir import verify
from cerebras_tf.ir.program import ARENA
from cerebras_tf.ops import infer
from cerebras_tf.passes import lower_products as lowering
from cerebras_tf.passes.differentiate import differentiate
from cerebras_tf.passes.lower_products import lower_products
from cerebras_tf.passes.round_operands import round_operands
from cerebras_tf.runtime.cpu import CpuBackend
from cerebras_tf.runtime.verify_program import verify_program
from tests.compiler.test_fit_activations import assert_equal_bits
from tests.compiler.test_spilling import DEAR
from tests.graphs import ops_of
from tests.machines import run_program
from tests.steps import StepBuilder, features_of, gelu_step, residual_step, starting_values

SIDE = 128


def dense_step(activate, rows=SIDE, residual=False):
    """Two layers x -> activate(x w) v, their gradients and updates."""
    s = StepBuilder()
    x = s.feature("x", rows, SIDE)
    hidden = activate(s.b, s.matmul(x, s.variable("w", SIDE, SIDE)))
    out = s.matmul(hidden, s.variable("v", SIDE, SIDE))
    if residual:
        out = s.b.op("add", out, hidden)
    loss = s.b.op("sum", s.b.op("square", out), axes=(0, 1), keepdims=False)
    s.momentum(loss, ["w", "v"], clip=False)
    return s.done(loss=loss)


def ordered(step):
    layers = assign_layers(step)
    differentiate(step.graph)
    lower_products(step.graph)
    step.graph.prune()
    order_nodes(step, layers)
    return step.graph


def tanh(b, x):
    return b.op("mul", b.op("tanh", x), 0.5)


def relu(b, x):
    return b.op("relu", x)


def roundings(graph):
    """Direction of the nodes that round, by the op that made their operand."""
    round_operands(graph)
    verify(graph, infer)
    return [(node.inputs[0].node.op, node.direction) for node in graph.nodes if node.op == "cast"]


def test_what_the_backward_pass_reads_by_products_only_is_rounded_where_it_is_made():
    graph = ordered(dense_step(tanh))
    assert ("mul", "forward") in roundings(graph)
    once = ops_of(graph)
    round_operands(graph)
    assert ops_of(graph) == once
    for node in graph.nodes:
        if node.op == "matmul":
            assert node.output.dtype == "float32"


def test_what_other_backward_work_reads_is_kept_in_float32():
    assert not [to for to, way in roundings(ordered(dense_step(relu))) if way == "forward"]


def test_forward_work_may_read_it_besides():
    assert ("mul", "forward") in roundings(ordered(dense_step(tanh, residual=True)))


def test_a_gradient_that_two_products_read_is_rounded_once():
    assert "backward" in [way for _, way in roundings(ordered(dense_step(tanh)))]


def test_products_in_float32_get_no_roundings():
    step = dense_step(tanh)
    layers = assign_layers(step)
    differentiate(step.graph)
    order_nodes(step, layers)
    assert roundings(step.graph) == []


@pytest.fixture
def lowers_all(monkeypatch):
    """Small products are lowered too."""
    monkeypatch.setattr(lowering, "LEAST_WORK", 0)


def trained(build, monkeypatch, rounds, **options):
    """(program, results and variables after three steps), with the pass or without."""
    step = build()
    variables, features = starting_values(step), [features_of(step, seed) for seed in range(3)]
    with monkeypatch.context() as patch:
        if not rounds:
            patch.setattr(pipeline, "round_operands", lambda graph: None)
        given = Options(precision="bfloat16", price=CpuBackend().price, **options)
        program = compile_step(step, given)
    verify_program(program)
    resting = {slot.type.dtype for slot in program.slots if slot.kind == ARENA}
    assert ("bfloat16" in resting) == rounds
    return program, run_program(program, step, variables, features)


def dropping_step():
    return residual_step(drop=True, rows=32)


@pytest.mark.parametrize("streaming", [True, False], ids=["streaming", "pipelined"])
@pytest.mark.parametrize("build", [gelu_step, dropping_step])
def test_bits_are_those_of_products_that_round(build, streaming, lowers_all, monkeypatch):
    found = [trained(build, monkeypatch, rounds, streaming=streaming) for rounds in (False, True)]
    assert_equal_bits(found[1][1], found[0][1])
    assert found[1][0].arena_bytes <= found[0][0].arena_bytes


@pytest.mark.parametrize("spills", [False, True])
def test_bits_stay_where_activations_are_made_again_or_rest_in_the_store(
    spills, lowers_all, monkeypatch
):
    monkeypatch.setattr(spilling, "_LEAST_BYTES", 0)
    program, wanted = trained(gelu_step, monkeypatch, True)
    chosen = []
    room = SpillSpace(1 << 30, 1e15, 1e15, 0.0)
    budget = Budget(
        int(0.75 * (program.arena_bytes + program.scratch_bytes)),
        lambda: DEAR,
        chosen.append,
        lambda program: room if spills else None,
    )
    _, found = trained(gelu_step, monkeypatch, True, staging=spills, budget=budget)
    assert_equal_bits(found, wanted)
    assert bool(chosen[0].spilled_bytes) == spills
