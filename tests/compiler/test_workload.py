"""Programs as workloads: the same products, weights and kept activations."""

from __future__ import annotations

import pytest

from cerebras_tf.compiler.pipeline import Options, compile_step
from cerebras_tf.compiler.workload import workload_of_program
from cerebras_tf.wafer.workload import GRADIENT, WEIGHTS
from tests.steps import INNER, WIDTH, residual_step

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
