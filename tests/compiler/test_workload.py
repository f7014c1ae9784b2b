"""Programs as workloads: the same products, weights and kept activations."""

from __future__ import annotations

import pytest

from cerebras_tf.compiler.pipeline import Options, compile_step
from cerebras_tf.compiler.workload import workload_of_program
from cerebras_tf.wafer.cycles import Cycles, layer_cycles
from cerebras_tf.wafer.system import load_system
from cerebras_tf.wafer.workload import GRADIENT, WEIGHTS
from tests.runtime.test_null import attention_step
from tests.steps import INNER, WIDTH, residual_step

CS2 = load_system()
ROWS, BLOCKS = 64, 6


def workload(**given):
    program = compile_step(residual_step(BLOCKS, rows=ROWS, **given))
    return program, workload_of_program(program, "residual")


@pytest.mark.parametrize("clip", [False, True])
def test_products_and_weights_are_those_of_the_model(clip):
    program, found = workload(clip=clip)
    kernels = 2 * WIDTH * WIDTH + BLOCKS * 2 * WIDTH * INNER
    assert found.parameters == kernels + BLOCKS * INNER
    assert found.state_elements == found.parameters  # momentum
    forward = [p for layer in found.layers for p in layer.forward]
    backward = [p for layer in found.layers for p in layer.backward]
    assert {p.kind for p in forward} == {WEIGHTS} and {p.kind for p in backward} == {
        WEIGHTS,
        GRADIENT,
    }
    assert sum(p.flops for p in forward) == 2 * ROWS * kernels
    # The gradient of the first product's input is not needed.
    assert sum(p.flops for p in backward) == 2 * ROWS * (2 * kernels - WIDTH * WIDTH)
    assert found.batch == ROWS and found.trains


def compute_cycles(workload):
    """Cycles of the multiply-adds of a step, at the full speed of a system."""
    total = sum(sum(layer_cycles(layer, CS2), Cycles()).compute for layer in workload.layers)
    return total * CS2.cores * CS2["simd"]


def test_cycles_are_those_of_the_products():
    rows, blocks = 4096, 3
    program = compile_step(residual_step(blocks, rows=rows))
    kernels = 2 * WIDTH * WIDTH + blocks * 2 * WIDTH * INNER
    multiply_adds = rows * (3 * kernels - WIDTH * WIDTH)
    assert compute_cycles(workload_of_program(program, "residual")) == pytest.approx(multiply_adds)


def test_attention_and_loss_count_as_products():
    program = compile_step(attention_step())
    attention = 2 * (2 * 256 * 4 * 16 * 256)  # of features: no gradient flows there
    loss = 3 * 512 * 64 * 1000
    found = compute_cycles(workload_of_program(program, "attention"))
    assert found == pytest.approx(attention + loss)


def test_every_layer_hands_one_tensor_on_and_keeps_what_its_gradient_reads():
    _, found = workload()
    inside = found.layers[1:-1]
    assert {layer.boundary_elements for layer in inside} == {ROWS * WIDTH}
    assert all(layer.inner_elements >= ROWS * INNER for layer in inside)


def test_repeated_layers_are_found():
    _, found = workload()
    assert found.period == 1
    assert len({(layer.forward, layer.backward) for layer in found.layers[1:-1]}) == 1


def test_a_step_without_training_has_no_backward_pass():
    _, found = workload(train=False)
    assert not found.trains and found.state_elements == 0
    assert all(layer.inner_elements == 0 for layer in found.layers)


def test_the_program_before_activations_are_fitted_is_told():
    told = []
    program = compile_step(residual_step(), Options(unfitted=told.append))
    assert [p.flops for p in told] == [program.flops]
