"""Several wafers with a batch each train as one with all of their rows: state, losses, bytes."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.compiler.pipeline import Options, compile_step
from cerebras_tf.memoryx.store import MemoryStore, write
from cerebras_tf.runtime.cpu import CpuBackend
from cerebras_tf.runtime.session import SavedProgram, Session
from cerebras_tf.runtime.shared_store import SharedStore
from cerebras_tf.swarmx import mpi
from tests.machines import contents
from tests.steps import BATCH, expected, features_of, residual_step, starting_values
from tests.swarmx.ranks import needs_mpi, on_ranks

STEPS = 3


def batches(wafers):
    """Features of some steps for one wafer that has the rows of all."""
    rows = BATCH * wafers
    return [features_of(residual_step(rows=rows), seed) for seed in range(STEPS)]


def train(clip, streaming):
    """What every rank does: trains on its rows, and returns what it has seen."""
    swarm = mpi.swarm()
    step = residual_step(clip=clip)
    backend = CpuBackend(swarm)
    options = Options(streaming=streaming, price=backend.price, wafers=swarm.size)
    program = compile_step(step, options)
    store = SharedStore(MemoryStore(step.specs.values()), swarm)
    store.deal_out(program.homes)
    for name, content in starting_values(residual_step(clip=clip)).items():
        write(store, name, content)
    session = Session(SavedProgram(program), store, backend, swarm=swarm)
    losses = []
    start = None
    for features in batches(swarm.size):
        part = slice(swarm.rank * BATCH, (swarm.rank + 1) * BATCH)
        losses.append(float(session.run({n: x[part] for n, x in features.items()})["loss"]))
        start = start or swarm.exchange.sent_bytes
    kept = store.here.resident_bytes
    sent = (swarm.exchange.sent_bytes - start) / (STEPS - 1)
    return losses, contents(store), kept, sent


@needs_mpi()
@pytest.mark.parametrize(
    "wafers, clip, streaming", [(2, False, True), (3, True, True), (2, True, False)]
)
def test_wafers_train_as_one_with_all_rows(wafers, clip, streaming, tmp_path):
    found = on_ranks(wafers, train, tmp_path, clip, streaming)
    step = residual_step(clip=clip, rows=BATCH * wafers)
    losses = []
    values = starting_values(residual_step(clip=clip))
    for features in batches(wafers):
        one = residual_step(clip=clip, rows=BATCH * wafers)
        results, values = expected(one, values, [features])
        losses.append(float(results["loss"]))
    np.testing.assert_allclose(np.mean([f[0] for f in found], axis=0), losses, rtol=1e-6)
    for _, state, _, _ in found:
        for name, wanted in values.items():
            np.testing.assert_allclose(state[name], wanted, rtol=2e-5, atol=1e-6)
            assert np.array_equal(state[name], found[0][1][name])
    whole = sum(spec.type.bytes for spec in step.specs.values())
    assert sum(f[2] for f in found) == whole
    assert max(f[2] for f in found) < 0.7 * whole
