"""The null executor runs the same schedule and reports the same bytes and operations."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.compiler.pipeline import Options, compile_step
from cerebras_tf.ir.program import RANDOM_STEP
from cerebras_tf.memoryx.store import MemoryStore
from cerebras_tf.runtime.cpu import CpuBackend
from cerebras_tf.runtime.executor import Executor
from cerebras_tf.runtime.null import NullBackend
from tests.compiler.test_assemble import STEPS
from tests.machines import store_of
from tests.steps import StepBuilder, features_of, starting_values


class Ledger:
    """Adds up what the steps of a schedule do, as any listener may."""

    def __init__(self, program):
        self._program = program
        self.kinds, self.flops, self.bytes = [], 0, 0

    def begin(self, program):
        pass

    def before(self, entry):
        self.kinds.append(entry.kind)

    def after(self, entry):
        if entry.kind == "run":
            costs = [item.cost for item in self._program.bodies[entry.body]]
            self.flops += sum(cost.flops for cost in costs)
            self.bytes += sum(cost.bytes_read + cost.bytes_written for cost in costs)


def attention_step():
    """Attention with dropout, layer norm and the loss over a vocabulary, trained."""
    s = StepBuilder()
    b = s.b
    x = s.feature("x", 2, 256, 4, 16)
    labels = s.feature("labels", 512, dtype="int64")
    draws = s.feature(RANDOM_STEP, dtype="int64")
    seeds = b.constant(np.array([3, 4], np.int64))
    scale, shift = s.variable("scale", 64), s.variable("shift", 64)
    weight = s.variable("weight", 1000, 64)
    mixed, _ = b.multi(
        "attention", x, x, x, draws, seeds, scale=0.25, causal=True, rate=0.1, kept_scale=1 / 0.9
    )
    rows = b.op("reshape", mixed, shape=(512, 64))
    normal, _, _ = b.multi("layer_norm", rows, scale, shift, epsilon=1e-5)
    losses, _ = b.multi("linear_softmax_xent", normal, weight, labels, transpose_weight=True)
    loss = b.op("mean", losses, axes=(0,), keepdims=False)
    s.momentum(loss, ["scale", "shift", "weight"], clip=True)
    return s.done(loss=loss)


def both(step, features):
    """A real and a null executor with their ledgers, after two steps."""
    real_backend = CpuBackend()
    program = compile_step(step, Options(price=real_backend.price))
    pairs = []
    for backend, store in (
        (real_backend, store_of(step.specs.values(), starting_values(step))),
        (NullBackend(real_backend), store_of(step.specs.values(), starting_values(step))),
    ):
        ledger = Ledger(program)
        executor = Executor(program, store, backend, [ledger])
        for _ in range(2):
            executor.run(features)
        pairs.append((executor, ledger))
    return pairs


@pytest.mark.parametrize("name", [name for name in STEPS if name != "unknown sizes"])
def test_both_report_the_same(name):
    step = STEPS[name]()
    (real, ledger), (null, null_ledger) = both(step, features_of(step))
    assert (null.bytes_in, null.bytes_out) == (real.bytes_in, real.bytes_out)
    assert null.arena.nbytes == real.arena.nbytes
    assert null.store.resident_bytes == real.store.resident_bytes
    assert vars(null_ledger) | {"_program": None} == vars(ledger) | {"_program": None}


def test_scratch_memory_is_as_planned_within_five_percent():
    step = attention_step()
    features = features_of(step)
    features["labels"] = np.arange(512, dtype=np.int64)
    features[RANDOM_STEP] = np.array(0, np.int64)
    (real, ledger), (null, null_ledger) = both(step, features)
    program = real.program
    assert null.scratch_bytes == program.scratch_bytes > 0
    planned = program.arena_bytes + program.scratch_bytes
    measured = real.arena.nbytes + real.scratch_bytes
    assert abs(planned - measured) <= 0.05 * measured
    assert null_ledger.flops == ledger.flops == 2 * program.flops


def test_a_null_machine_holds_no_memory():
    s = StepBuilder()
    x = s.feature("x", 1 << 20, 1 << 20)  # 4 TB
    program = compile_step(s.done(y=s.b.op("exp", s.b.op("neg", x))))
    backend = NullBackend(CpuBackend())
    features = {"x": np.broadcast_to(np.zeros((), np.float32), (1 << 20, 1 << 20))}
    executor = Executor(program, MemoryStore([]), backend)
    assert executor.run(features)["y"].shape == (1 << 20, 1 << 20)
    assert executor.arena.nbytes == 1 << 42
