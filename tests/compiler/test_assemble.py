"""Programs compute what the graph says, and read nothing that is not there."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from cerebras_tf.compiler.assemble import replan
from cerebras_tf.compiler.pipeline import Options, compile_step
from cerebras_tf.errors import GraphError
from cerebras_tf.ir import Dim
from cerebras_tf.ir.program import ARENA, VARIABLE, Cost
from cerebras_tf.ir.schedule import Free, Run, StreamIn, StreamOut
from cerebras_tf.ops.cost import price
from cerebras_tf.runtime.verify_program import verify_program
from tests.machines import run_program
from tests.steps import (
    BATCH,
    WIDTH,
    StepBuilder,
    expected,
    features_of,
    residual_step,
    starting_values,
)

CLOSE = {"rtol": 2e-5, "atol": 1e-6}
MODES = {
    "streaming": Options(),
    "pipelined": Options(streaming=False),
    "unfused": Options(fuse=False),
}


def with_copies():
    """Variables that take others' old values: a swap, a shift; and results that are old values."""
    s = StepBuilder()
    names = ("a", "b", "c", "d")
    a, b, c, _ = (s.variable(name, 6) for name in names)
    x = s.feature("x", 6)
    s.step.updates = {"a": b, "b": a, "d": c, "c": s.b.op("add", c, x)}
    return s.done(old=a, older=c)


def with_views():
    """A variable read through views, before and after another one changed in place."""
    s = StepBuilder()
    w = s.variable("w", 2, 8)
    x = s.feature("x", 4, 4)
    flat = s.b.op("reshape", w, shape=(4, 4))
    y = s.matmul(s.matmul(x, flat), flat)
    loss = s.b.op("sum", s.b.op("square", y), axes=(0, 1), keepdims=False)
    s.momentum(loss, ["w"], clip=False)
    late = s.b.op("mul", flat, loss)
    return s.done(loss=loss, late=late)


def with_average():
    """A running average that reads the new weights."""
    s = StepBuilder()
    w, average = s.variable("w", 3, 3), s.variable("average", 3, 3)
    x = s.feature("x", 3, 3)
    loss = s.b.op("sum", s.b.op("square", s.matmul(x, w)), axes=(0, 1), keepdims=False)
    s.momentum(loss, ["w"], clip=False)
    new = s.step.updates["w"]
    mixed = s.b.op("add", s.b.op("mul", average, 0.9), s.b.op("mul", new, 0.1))
    s.step.updates["average"] = mixed
    return s.done(loss=loss, new=new)


def with_a_view_of_itself():
    """A variable whose new value reads a row of the old one, for every row."""
    s = StepBuilder()
    w, x = s.variable("w", 64, 6), s.feature("x", 64, 6)
    row = s.b.op("slice", w, starts=(1, 0), sizes=(1, 6), strides=(1, 1))
    s.step.updates["w"] = s.b.op("sub", s.b.op("mul", w, x), row)
    return s.done()


def with_tied_weights():
    """One matrix used in the first and in the last layer."""
    s = StepBuilder()
    x = s.feature("x", BATCH, WIDTH)
    tied = s.variable("tied", WIDTH, WIDTH)
    inner = s.matmul(s.b.op("tanh", s.matmul(x, tied)), s.variable("mid", WIDTH, WIDTH))
    out = s.b.op("matmul", s.b.op("tanh", inner), tied, transpose_a=False, transpose_b=True)
    loss = s.b.op("mean", s.b.op("square", out), axes=(0, 1), keepdims=False)
    s.momentum(loss, ["tied", "mid"], clip=False)
    return s.done(loss=loss)


def with_unknown_sizes():
    """Rows are counted at run time; static values are read beside them."""
    s = StepBuilder()
    x = s.feature("x", None, 4)
    w = s.variable("w", 4, 4)
    rows = s.b.op("tanh", s.matmul(x, w))
    gram = s.b.op("matmul", rows, rows, transpose_a=True, transpose_b=False)
    loss = s.b.op("sum", s.b.op("square", gram), axes=(0, 1), keepdims=False)
    s.momentum(loss, ["w"], clip=True)
    return s.done(loss=loss, rows=rows)


def with_counter():
    """A scalar that is read by the first and by the last layer, and counted up."""
    s = StepBuilder()
    count = s.variable("count")
    x, w = s.feature("x", 4, 4), s.variable("w", 4, 4)
    y = s.matmul(s.b.op("mul", x, count), w)
    loss = s.b.op("mul", s.b.op("sum", y, axes=(0, 1), keepdims=False), count)
    s.momentum(loss, ["w"], clip=False)
    s.step.updates["count"] = s.b.op("add", count, 1.0)
    return s.done(loss=loss, count=s.step.updates["count"])


def without_weights():
    """Nothing streams."""
    s = StepBuilder()
    return s.done(y=s.b.op("exp", s.feature("x", 4)), constant=s.b.constant(2.0, "float32"))


STEPS = {
    "residual": residual_step,
    "clipped": lambda: residual_step(3, clip=True),
    "forward only": lambda: residual_step(3, train=False),
    "copies": with_copies,
    "views": with_views,
    "average": with_average,
    "a view of itself": with_a_view_of_itself,
    "tied": with_tied_weights,
    "unknown sizes": with_unknown_sizes,
    "counter": with_counter,
    "no weights": without_weights,
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", STEPS)
def test_programs_compute_what_the_graph_says(name, mode):
    step = STEPS[name]()
    variables = starting_values(step)
    steps = [features_of(step, seed) for seed in range(3)]
    wanted = expected(STEPS[name](), variables, steps)
    program = compile_step(step, MODES[mode])
    verify_program(program)
    found = run_program(program, step, variables, steps)
    for ours, theirs in zip(found, wanted):
        assert ours.keys() == theirs.keys()
        for key in theirs:
            np.testing.assert_allclose(ours[key], theirs[key], err_msg=key, **CLOSE)


def test_streaming_and_pipelined_programs_give_equal_bits():
    found = []
    for mode in ("streaming", "pipelined"):
        step = residual_step(3)
        variables = starting_values(step)
        program = compile_step(step, MODES[mode])
        found.append(run_program(program, step, variables, [features_of(step)] * 4))
    for ours, theirs in zip(*found):
        for key in theirs:
            np.testing.assert_array_equal(ours[key], theirs[key])


def test_a_pipelined_program_streams_in_once_and_frees_no_variable():
    program = compile_step(residual_step(), MODES["pipelined"])
    arrivals = [step for step in program.schedule if isinstance(step, StreamIn)]
    assert [set(step.slots) for step in arrivals] == [set(program.variables.values())]
    for step in program.schedule:
        if isinstance(step, Free):
            assert all(program.slots[slot].kind != VARIABLE for slot in step.slots)


def test_a_streaming_program_holds_the_weights_of_one_run_at_a_time():
    program = compile_step(residual_step())
    present: set[int] = set()
    for step in program.schedule:
        if isinstance(step, StreamIn):
            assert not present, "the layer before is still here"
            present.update(step.slots)
        elif isinstance(step, Free):
            present.difference_update(step.slots)
    assert not present


def test_layers_of_equal_shape_share_bodies():
    counts = [len(compile_step(residual_step(n)).bodies) for n in (4, 8)]
    assert counts[0] == counts[1]


@pytest.mark.parametrize("clip", [False, True])
def test_layers_that_draw_by_seeds_of_their_own_share_bodies(clip):
    counts = [len(compile_step(residual_step(n, clip, drop=True)).bodies) for n in (4, 8, 16)]
    assert len(set(counts)) == 1, counts


def test_weights_are_updated_in_place():
    program = compile_step(residual_step())
    stores = [pair for s in program.schedule if isinstance(s, StreamOut) for pair in s.stores]
    assert sorted(name for name, _ in stores) == sorted(program.variables)
    for name, slot in stores:
        assert slot == program.variables[name]


def test_the_arena_does_not_grow_with_an_update():
    """Updates are in place, so what training adds to the forward pass are activations."""
    program = compile_step(residual_step())
    weights = {program.slots[slot].type.bytes for slot in program.variables.values()}
    biggest = max(weights)
    gradients = [s for s in program.slots if s.kind == ARENA and s.type.bytes == biggest]
    assert program.arena_bytes < sum(slot.type.bytes for slot in gradients)


def test_layers_are_named_by_their_weights_and_hold_each_once():
    program = compile_step(residual_step(4))
    found = [name for layer in program.layers for name in layer.variables]
    wanted = [name for name in program.variables if "Momentum" not in name]
    assert sorted(found) == sorted(wanted)
    assert any(layer.name.startswith("block_2") for layer in program.layers)
    for layer in program.layers:
        sizes = [program.slots[program.variables[name]].type.bytes for name in layer.variables]
        assert layer.weight_bytes == sum(sizes)


def test_flops_count_the_products_of_forward_and_backward():
    program = compile_step(residual_step(2))
    forward = 2 * BATCH * (2 * WIDTH * WIDTH + 2 * 2 * WIDTH * 64)
    backward = 2 * forward - 2 * BATCH * WIDTH * WIDTH  # no gradient by the feature
    assert forward + backward < program.flops < 1.2 * (forward + backward)


def damaged(drop):
    """A program of which the first step that `drop` picks is taken away."""
    program = compile_step(residual_step(2))
    at = next(i for i, step in enumerate(program.schedule) if drop(step))
    return dataclasses.replace(program, schedule=program.schedule[:at] + program.schedule[at + 1 :])


DAMAGES = {
    "weights that never arrive": lambda step: isinstance(step, StreamIn),
    "a run left out": lambda step: isinstance(step, Run),
}


@pytest.mark.parametrize("drop", DAMAGES.values(), ids=DAMAGES.keys())
def test_the_check_of_schedules_sees_damage(drop):
    with pytest.raises(GraphError):
        verify_program(damaged(drop))


def test_the_check_of_schedules_sees_overlapping_memory():
    program = compile_step(residual_step(2))
    program.slots = [
        dataclasses.replace(slot, offset=0) if slot.kind == ARENA else slot
        for slot in program.slots
    ]
    with pytest.raises(GraphError):
        verify_program(program)


def with_a_table():
    """Rows of a table, trained: the update reads rows and their numbers."""
    s = StepBuilder()
    table, w = s.variable("table", 20, 4), s.variable("w", 4, 4)
    ids = s.feature("ids", 6, dtype="int64")
    rows = s.b.op("gather", table, ids, axis=0, batch_dims=0)
    loss = s.b.op("sum", s.b.op("square", s.matmul(rows, w)), axes=(0, 1), keepdims=False)
    s.momentum(loss, ["table", "w"], clip=False)
    return s.done(loss=loss)


@pytest.mark.parametrize(
    "make", [*STEPS.values(), with_a_table, lambda: residual_step(6, clip=True)]
)
def test_a_variable_belongs_to_one_layer_at_most(make):
    program = compile_step(make())
    owned = [name for layer in program.layers for name in (*layer.variables, *layer.slots)]
    assert len(owned) == len(set(owned))
    assert set(owned) <= set(program.variables)
    for layer in program.layers:
        bytes_of = [
            sum(program.slots[program.variables[name]].type.bytes for name in names)
            for names in (layer.variables, layer.slots)
        ]
        assert [layer.weight_bytes, layer.slot_bytes] == bytes_of


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("streaming", [False, True])
def test_a_layer_owns_the_state_of_its_weights(clip, streaming):
    program = compile_step(residual_step(4, clip), Options(streaming=streaming))
    assert len(program.layers) > 2
    for layer in program.layers:
        assert sorted(layer.slots) == sorted(f"{name}/Momentum" for name in layer.variables)
    owned = {name for layer in program.layers for name in (*layer.variables, *layer.slots)}
    assert owned == set(program.variables)


def test_a_forward_program_has_layers_without_state():
    program = compile_step(residual_step(3, train=False))
    assert [layer.slots for layer in program.layers] == [()] * len(program.layers)


def test_shared_weights_belong_to_the_first_layer_that_reads_them():
    layers = compile_step(with_tied_weights()).layers
    owners = [i for i, layer in enumerate(layers) if "tied" in layer.variables]
    assert owners == [0]
    assert "tied/Momentum" in layers[0].slots


def table_step(read_later):
    """Rows added to a table that was made, which is read again afterwards or not."""
    s = StepBuilder()
    ids, rows, x = s.feature("ids", 3, dtype="int32"), s.feature("rows", 3, 4), s.feature("x", 5, 4)
    table = s.matmul(x, s.variable("w", 4, 4))
    added = s.b.op("rows_add", table, ids, rows)
    return s.done(added=s.b.op("mul", added, table) if read_later else s.b.op("exp", added))


@pytest.mark.parametrize("read_later", [False, True])
def test_rows_are_added_where_the_table_lies_unless_it_is_read_later(read_later):
    program = compile_step(table_step(read_later))
    verify_program(program)
    (places,) = [
        {step.slots[item.inputs[0]], step.slots[item.outputs[0]]}
        for step in program.schedule
        if isinstance(step, Run)
        for item in program.bodies[step.body]
        if item.op == "rows_add"
    ]
    assert len(places) == 1 + read_later
    step = table_step(read_later)
    variables = starting_values(step)
    features = {**features_of(step), "ids": np.array([1, 4, 1], np.int32)}
    wanted, _ = expected(table_step(read_later), variables, [features])
    found, _ = run_program(program, step, variables, [features])
    np.testing.assert_allclose(found["added"], wanted["added"], rtol=1e-5)


def symbolic_step(rows):
    """x w squared and summed, trained, for some rows."""
    s = StepBuilder()
    x, w = s.feature("x", rows, WIDTH), s.variable("w", WIDTH, WIDTH)
    y = s.b.op("tanh", s.matmul(x, w))
    loss = s.b.op("sum", s.b.op("square", y), axes=(0, 1), keepdims=False)
    s.momentum(loss, ["w"], clip=False)
    return s.done(loss=loss, y=y)


def test_memory_planned_anew_is_that_of_a_program_with_the_larger_bound():
    small = compile_step(symbolic_step(Dim.symbol("R", 4, 64)))
    larger = replan(small, {"R": 32}, price)
    wanted = compile_step(symbolic_step(Dim.symbol("R", 32, 64)))
    assert larger.arena_bytes == wanted.arena_bytes > small.arena_bytes
    assert larger.slots == wanted.slots
    assert [i.cost for i in larger.instructions()] == [i.cost for i in wanted.instructions()]
    verify_program(larger)


def test_a_program_planned_anew_computes_the_same_numbers():
    larger = replan(compile_step(symbolic_step(Dim.symbol("R", 4, 64))), {"R": 32}, price)
    for rows in (32, 5):
        step = symbolic_step(rows)
        variables, features = starting_values(step), features_of(step)
        wanted = expected(symbolic_step(rows), variables, [features])
        found = run_program(larger.at({"R": rows}, price), step, variables, [features])
        for ours, theirs in zip(found, wanted):
            for key in theirs:
                np.testing.assert_allclose(ours[key], theirs[key], err_msg=key, **CLOSE)


def test_a_plan_beyond_the_limit_is_refused():
    program = compile_step(symbolic_step(Dim.symbol("R", 4, 64)))
    with pytest.raises(GraphError):
        replan(program, {"R": 65}, price)


def test_instructions_carry_the_price_for_the_largest_sizes():
    program = compile_step(symbolic_step(Dim.symbol("R", 8)))
    products = [item.cost.flops for item in program.instructions() if item.op == "matmul"]
    assert products == [2 * 8 * WIDTH * WIDTH] * 2  # y, and the gradient by w
    asked = []

    def dear(op, inputs, outputs, attrs):
        asked.append(op)
        return Cost(1, 2, 3, 4)

    priced = compile_step(symbolic_step(8), Options(price=dear))
    count = len(list(priced.instructions()))
    assert (priced.flops, priced.scratch_bytes) == (count, 4)
    assert {item.op for item in priced.instructions()} == set(asked)
