"""What does not fit is made again: the same bits, in less memory, for the least extra time."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from cerebras_tf.compiler.assemble import planned_bytes
from cerebras_tf.compiler.fit_activations import (
    CHEAP,
    KEEP,
    WHOLE,
    Activations,
    Budget,
    Fitting,
    choose,
    memory_with,
    segments_of,
)
from cerebras_tf.compiler.pipeline import Options, compile_step
from cerebras_tf.ops.cost import Speeds
from cerebras_tf.quantities import seconds
from cerebras_tf.runtime.cpu import CpuBackend
from cerebras_tf.runtime.verify_program import verify_program
from tests.graphs import graph_of
from tests.machines import run_program
from tests.steps import (
    BATCH,
    INNER,
    WIDTH,
    StepBuilder,
    features_of,
    gelu_step,
    residual_step,
    starting_values,
)

FREE = Options()


def with_tied_weights():
    """Two layers of one matrix, and an activation that the step returns."""
    s = StepBuilder()
    tied = s.variable("tied", WIDTH, WIDTH)
    stream = s.feature("x", 16 * BATCH, WIDTH)
    for number in range(4):
        stream = s.b.op("tanh", s.matmul(stream, tied))
        stream = s.matmul(stream, s.variable(f"own_{number}", WIDTH, WIDTH))
    loss = s.b.op("mean", s.b.op("square", stream), axes=(0, 1), keepdims=False)
    s.momentum(loss, ["tied", *(f"own_{number}" for number in range(4))], clip=False)
    return s.done(loss=loss, seen=stream)


def with_conditions():
    """Layers whose middle is a conditional on a feature."""
    s = StepBuilder()
    stream, hot = s.feature("x", 16 * BATCH, WIDTH), s.feature("hot", dtype="bool")
    names = [f"w{number}" for number in range(4)]
    for name in names:
        inner = s.matmul(stream, s.variable(name, WIDTH, WIDTH))
        branches = {}
        for key, op in (("then", "tanh"), ("orelse", "softplus")):
            branches[key] = graph_of(lambda b, x, op=op: b.op(op, b.op("exp", x)), str(inner.type))
        (chosen,) = s.b.multi("cond", hot, inner, **branches)
        stream = s.b.op("add", stream, chosen)
    loss = s.b.op("mean", s.b.op("square", stream), axes=(0, 1), keepdims=False)
    s.momentum(loss, names, clip=False)
    return s.done(loss=loss)


STEPS = {
    "gelu": gelu_step,
    "unequal": lambda: gelu_step((96, 16, 64, 8), clip=False),
    "tied": with_tied_weights,
    "conditions": with_conditions,
}


def within(budget_bytes, found=None, options=FREE):
    """Options with a budget; what is chosen goes to the list `found`."""
    found = [] if found is None else found
    return replace(options, budget=Budget(budget_bytes, lambda: SPEEDS, found.append))


def least_bytes(build, options):
    """The least memory that is found."""
    found = []
    compile_step(build(), within(0, found, options))
    return found[0].planned_bytes


def trained(build, options, steps=3):
    """(program, results and variables after some steps)."""
    step = build()
    variables = starting_values(step)
    features = [features_of(step, seed) for seed in range(steps)]
    program = compile_step(step, options)
    verify_program(program)
    return program, run_program(program, step, variables, features)


def assert_equal_bits(ours, theirs):
    for mine, other in zip(ours, theirs):
        assert mine.keys() == other.keys()
        for name in other:
            np.testing.assert_array_equal(mine[name], other[name], err_msg=name)


@pytest.mark.parametrize("streaming", [True, False], ids=["streaming", "pipelined"])
@pytest.mark.parametrize("name", STEPS)
def test_training_within_any_budget_gives_the_same_bits(name, streaming):
    options = Options(streaming=streaming, price=CpuBackend().price)
    program, wanted = trained(STEPS[name], options)
    needed = program.arena_bytes + program.scratch_bytes
    least = least_bytes(STEPS[name], options)
    assert least < 0.97 * needed
    for budget in np.linspace(least, needed - 1, 4).astype(int):
        found: list[Fitting] = []
        fitted, results = trained(STEPS[name], within(int(budget), found, options))
        assert fitted.arena_bytes + fitted.scratch_bytes == found[0].planned_bytes
        assert found[0].fits and found[0].planned_bytes <= budget < found[0].needed_bytes == needed
        assert_equal_bits(results, wanted)


def test_what_fits_is_compiled_as_without_a_budget():
    free = compile_step(gelu_step())
    needed = free.arena_bytes + free.scratch_bytes

    def never():
        raise AssertionError("speeds are measured only where a step does not fit")

    budget = Budget(needed, never, never)
    assert compile_step(gelu_step(), Options(budget=budget)).schedule == free.schedule


def test_what_cannot_fit_gets_the_least_memory_and_says_so():
    found: list[Fitting] = []
    program, results = trained(gelu_step, within(1, found))
    assert not found[0].fits
    assert program.arena_bytes < compile_step(gelu_step()).arena_bytes
    assert_equal_bits(results, trained(gelu_step, Options())[1])
    assert "do not fit in 1e-09 GB" in str(found[0])


def every_choice(activations, layers):
    """All ways to choose for every layer."""
    options = [
        [activations.choice(kind, layer, layer) for kind in (KEEP, CHEAP, WHOLE)]
        for layer in range(layers)
    ]
    return list(itertools.product(*options))


@pytest.mark.parametrize("name", STEPS)
def test_what_is_chosen_costs_little_more_than_the_best_of_all_choices(name):
    step, activations, layers = fused(STEPS[name])
    needed = planned_bytes(step)
    known = {}

    def memory(choices):
        segments = tuple(segments_of(choices))
        if segments not in known:
            known[segments] = memory_with(step, segments)
        return known[segments]

    tried = [(memory(c), seconds_of(c)) for c in every_choice(activations, layers)]
    least = min(found for found, _ in tried)
    for room in np.linspace(least, needed - 1, 9).astype(int):
        best = min(seconds for found, seconds in tried if found <= room)
        chosen = choose(activations, layers, memory, room)
        assert memory(chosen) <= room
        assert seconds_of(chosen) <= 1.1 * best, [choice.kind for choice in chosen]


def seconds_of(choices):
    """Predicted time of all choices."""
    return sum(choice.seconds for choice in choices)


def test_layers_keep_less_together_where_each_for_itself_is_too_much():
    deep = (16,) * 10
    found: list[Fitting] = []
    compile_step(gelu_step(deep), within(0, found))
    one_by_one = memory_with_all_whole(deep)
    assert found[0].planned_bytes < one_by_one
    assert max(c.segment.last - c.segment.first for c in found[0].choices) > 0
    assert " at a time, which takes" in str(found[0])
    options = within((found[0].planned_bytes + one_by_one) // 2)
    program, results = trained(lambda: gelu_step(deep), options, steps=2)
    assert_equal_bits(results, trained(lambda: gelu_step(deep), Options(), steps=2)[1])
    assert program.arena_bytes < one_by_one


def memory_with_all_whole(inners):
    """Memory of a step each of whose layers is made again for itself."""
    step, activations, layers = fused(lambda: gelu_step(inners))
    choices = [activations.choice(WHOLE, layer, layer) for layer in range(layers)]
    return memory_with(step, segments_of(choices))


def test_trying_choices_leaves_the_step_as_it_was():
    step, activations, layers = fused(gelu_step)
    before, needed = str(step.graph), planned_bytes(step)
    choices = [activations.choice(WHOLE, layer, layer) for layer in range(layers)]
    assert memory_with(step, segments_of(choices)) < needed
    assert str(step.graph) == before and planned_bytes(step) == needed


def test_layers_that_are_made_again_share_bodies():
    counts = set()
    for blocks in (6, 12):
        program = compile_step(gelu_step((INNER,) * blocks), within(1))
        counts.add(len(program.bodies))
    assert len(counts) == 1, counts


def test_the_report_says_what_was_chosen_why_and_what_it_costs():
    found: list[Fitting] = []
    free = compile_step(gelu_step())
    compile_step(gelu_step(), within(int(0.6 * free.arena_bytes), found))
    again, more = found[0].choices, sum(choice.flops for choice in found[0].choices)
    whole = sum(choice.kind == WHOLE for choice in again)
    assert whole
    assert str(found[0]).startswith(
        f"activations: {free.arena_bytes / 1e9:.3g} GB do not fit in "
        f"{0.6 * free.arena_bytes / 1e9:.3g} GB: {whole} of {len(again)} layers are recomputed"
    )
    share = f"+{more / free.flops:.0%} operations per step, predicted +{seconds(found[0].seconds)}"
    assert str(found[0]).endswith(share)


SPEEDS = Speeds(flops_per_s=4e9, bytes_per_s=1e9)


def fused(build):
    """(the step as the passes leave it, what its layers may choose, their number)."""
    step = build()
    program = compile_step(step)
    return step, Activations(step, program, SPEEDS), len(program.layers)


def test_the_cheap_part_is_what_moves_memory_and_the_whole_has_the_products_too():
    step, activations, _ = fused(gelu_step)
    made = {
        kind: {value.node.op for value in activations.choice(kind, 2, 2).segment.recomputed}
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
    again = {v.node: v for v in whole.segment.recomputed}
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
