"""What layers may make again, what that saves and costs: by prices, not by names of ops."""

from __future__ import annotations

from cerebras_tf.compiler.activations import CHEAP, WHOLE, Activations
from cerebras_tf.compiler.pipeline import compile_step
from cerebras_tf.ops.cost import Speeds
from tests.steps import BATCH, INNER, WIDTH, gelu_step, residual_step

SPEEDS = Speeds(flops_per_s=4e9, bytes_per_s=1e9)


def fused(build):
    """(the step as the passes leave it, what its layers may choose, their number)."""
    step = build()
    program = compile_step(step)
    return step, Activations(step, program, SPEEDS), len(program.layers)


def test_the_cheap_part_is_what_moves_memory_and_the_whole_has_the_products_too():
    step, activations, _ = fused(gelu_step)
    made = {
        kind: {value.node.op for value in activations.choice(kind, 2, 2).segment.again}
        for kind in (CHEAP, WHOLE)
    }
    assert {"fused_elementwise", "layer_norm"} <= made[CHEAP] and "matmul" not in made[CHEAP]
    assert made[WHOLE] >= {*made[CHEAP], "matmul"}


def test_a_choice_counts_what_is_not_kept_and_what_is_computed_again():
    step, activations, _ = fused(gelu_step)
    rows, gelu = 16 * BATCH, 4 * 16 * BATCH * 64
    cheap, whole = (activations.choice(kind, 2, 2) for kind in (CHEAP, WHOLE))
    norm, mask = 4 * rows * WIDTH, rows * WIDTH
    assert cheap.saved_bytes == gelu + norm + 2 * 4 * rows  # the output, its mean and deviation
    assert whole.saved_bytes == cheap.saved_bytes + gelu + mask  # a product, and what dropped
    assert whole.flops == cheap.flops + 2 * rows * WIDTH * 64 + (20 + 1) * rows * WIDTH
    again = {v.node: v for v in whole.segment.again}
    assert sum(node.op == "matmul" for node in again) == 1  # nobody reads the second one backward


def test_a_value_that_costs_another_one_its_size_is_kept():
    """relu's output is enough for its gradient: its operand is not kept instead."""
    _, activations, layers = fused(lambda: residual_step(3, rows=16 * BATCH))
    saved = {
        kind: [activations.choice(kind, layer, layer).saved_bytes for layer in range(layers)]
        for kind in (CHEAP, WHOLE)
    }
    assert set(saved[CHEAP]) == {0}
    assert 4 * 16 * BATCH * INNER in saved[WHOLE]
