"""Activations that rest in the store between the passes: the same bits, in less memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cerebras_tf.compiler import spilling
from cerebras_tf.compiler.fit_activations import (
    CHEAP_SPILL,
    SPILL,
    WHOLE,
    Activations,
    Budget,
    Fitting,
    Spilling,
    SpillSpace,
)
from cerebras_tf.compiler.pipeline import Options, compile_step
from cerebras_tf.ir.schedule import StreamIn, StreamOut
from cerebras_tf.memoryx.buffers import padded
from cerebras_tf.memoryx.disk import FileDisk, PlannedDisk
from cerebras_tf.memoryx.file_store import FileStore
from cerebras_tf.memoryx.store import MemoryStore, write
from cerebras_tf.ops.cost import Speeds
from cerebras_tf.runtime.cpu import CpuBackend
from cerebras_tf.runtime.executor import Executor
from cerebras_tf.runtime.null import NullBackend
from cerebras_tf.runtime.verify_program import verify_program
from tests.compiler.test_fit_activations import SPEEDS, STEPS, assert_equal_bits
from tests.machines import contents, run_program
from tests.steps import features_of, gelu_step, starting_values

ON_FILES = Options(staging=True, price=CpuBackend().price)
# A disk that takes no time beside computing, and one that is never worth it.
FAST, SLOW = 1e15, 1.0
# Speeds of a executor on which making anything again is dear.
DEAR = Speeds(flops_per_s=1e3, bytes_per_s=1e9)


@pytest.fixture(autouse=True)
def spills_all(monkeypatch):
    """Small values may rest in the store too."""
    monkeypatch.setattr(spilling, "_LEAST_BYTES", 0)


def within(budget_bytes, found, disk=FAST, max_bytes=1 << 30, speeds=DEAR):
    """Options with a budget and a disk; what is chosen goes to the list `found`."""
    room = SpillSpace(max_bytes, disk, disk, 0.0)
    budget = Budget(budget_bytes, lambda: speeds, found.append, lambda program: room)
    return replace(ON_FILES, budget=budget)


def trained(build, options, store=None, steps=3):
    """(program, results and variables after some steps)."""
    step = build()
    variables = starting_values(step)
    features = [features_of(step, seed) for seed in range(steps)]
    program = compile_step(step, options)
    verify_program(program)
    if store is None:
        return program, run_program(program, step, variables, features)
    made = store(step.specs.values(), least_room(program, step))
    for name, content in variables.items():
        write(made, name, content)
    executor = Executor(program, made, CpuBackend())
    executor.arena[:] = 0xFF
    results = {}
    for arrays in features:
        made.set_access_order(executor.acquisitions)
        results = executor.run(arrays)
    return program, (results, contents(made))


def least_room(program, step):
    """Bytes of main memory without which a store cannot hold what a step needs at once."""
    executor = Executor(program, MemoryStore(step.specs.values()), NullBackend(CpuBackend()))
    types = {spec.name: spec.type for spec in step.specs.values()}
    types.update({name: program.slots[slot].type for name, slot in program.staged.items()})
    return max(sum(padded(types[n].bytes) for n in set(held)) for held in executor.held_together)


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("name", STEPS)
def test_training_with_spilled_activations_gives_the_same_bits(name, clip, tmp_path):
    build = (lambda: gelu_step(clip=clip)) if name == "gelu" else STEPS[name]
    program, wanted = trained(build, ON_FILES)
    least: list[Fitting] = []
    compile_step(build(), within(0, least))
    assert least[0].spilled_bytes > 0
    needed = program.arena_bytes + program.scratch_bytes
    stores = []

    def on_files(specs, max_bytes):
        stores.append(FileStore(specs, FileDisk(str(tmp_path), max_bytes)))
        return stores[-1]

    for budget in np.linspace(least[0].planned_bytes, needed - 1, 3).astype(int):
        found: list[Fitting] = []
        for store in (None, on_files):
            fitted, results = trained(build, within(int(budget), found), store)
            assert fitted.arena_bytes + fitted.scratch_bytes == found[-1].planned_bytes <= budget
            assert_equal_bits(results, wanted)
    assert "layers spill " in str(found[-1]) and " to memoryx_dir" in str(found[-1])
    assert all(store.io_stats.bytes_written for store in stores)
    for store in stores:
        store.close()


def test_a_fast_disk_is_chosen_and_a_slow_one_is_not():
    least: list[Fitting] = []
    compile_step(gelu_step(), within(0, least))
    budget = int(1.2 * least[0].planned_bytes)
    for disk, speeds, spills in ((FAST, DEAR, True), (SLOW, SPEEDS, False)):
        found: list[Fitting] = []
        compile_step(gelu_step(), within(budget, found, disk, speeds=speeds))
        assert found[0].fits
        assert bool(found[0].spilled_bytes) == spills
        assert bool(sum(choice.flops for choice in found[0].choices)) != spills


def test_computing_hides_the_disk_as_far_as_it_goes():
    """Seconds a byte: a copy, and what of the disk's time computing does not cover."""
    cost = []
    for disk in (1e3, 1e6, 1e9, 1e15):
        found: list[Fitting] = []
        compile_step(gelu_step(), within(0, found, disk))
        spilled = [choice for choice in found[0].choices if choice.kind == SPILL]
        cost.append(sum(c.seconds for c in spilled) / max(sum(c.spilled_bytes for c in spilled), 1))
    assert cost[-1] == pytest.approx(2 / DEAR.bytes_per_s)
    assert cost == sorted(cost, reverse=True)


def test_a_layer_spills_no_more_than_the_store_can_hold():
    step = gelu_step()
    program = compile_step(step, ON_FILES)
    for most in (0, 5000, 1 << 30):
        activations = Activations(step, program, SPEEDS, Spilling(most, 1e-9))
        for kind in (SPILL, CHEAP_SPILL):
            assert activations.choice(kind, 2, 2).spilled_bytes <= most
    whole, both = activations.choice(WHOLE, 2, 2), activations.choice(CHEAP_SPILL, 2, 2)
    assert both.saved_bytes >= whole.saved_bytes and both.flops < whole.flops


def test_what_does_not_fit_tells_what_spilling_would_take():
    found: list[Fitting] = []
    budget = Budget(1, lambda: SPEEDS, found.append)
    compile_step(gelu_step(), Options(budget=budget, price=CpuBackend().price))
    with_disk: list[Fitting] = []
    program = compile_step(gelu_step(), within(1, with_disk, speeds=SPEEDS))
    assert not found[0].fits and with_disk[0].least_bytes is None
    assert found[0].least_bytes is not None
    assert found[0].least_bytes < found[0].planned_bytes
    assert program.arena_bytes + program.scratch_bytes <= 1.05 * found[0].least_bytes


def test_a_plan_tells_what_spilling_moves():
    found: list[Fitting] = []
    program = compile_step(gelu_step(), within(0, found))
    store = FileStore(gelu_step().specs.values(), PlannedDisk(1 << 30))
    executor = Executor(program, store, NullBackend(CpuBackend()))
    spilled = {name for name in program.staged if name.startswith(spilling.SPILLED)}
    out = [s for step in program.schedule if isinstance(step, StreamOut) for s in step.stores]
    into = [s for step in program.schedule if isinstance(step, StreamIn) for s in step.slots]
    assert spilled and spilled <= {name for name, _ in out}
    assert all(into.count(program.staged[name]) == 1 for name in spilled)
    assert spilled <= {name for names in executor.held_together for name in names}
