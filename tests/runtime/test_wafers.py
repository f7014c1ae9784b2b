"""Several wafers with a batch each train as one with all of their rows: state, losses, bytes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from cerebras_tf.compiler import spilling
from cerebras_tf.compiler.fit_activations import Budget, SpillSpace
from cerebras_tf.compiler.pipeline import Options, compile_step
from cerebras_tf.memoryx.disk import FileDisk
from cerebras_tf.memoryx.file_store import FileStore
from cerebras_tf.memoryx.store import MemoryStore, write
from cerebras_tf.ops.cost import Speeds
from cerebras_tf.runtime.collective_plan import sent_bytes
from cerebras_tf.runtime.cpu import CpuBackend
from cerebras_tf.runtime.shared_store import SharedStore
from cerebras_tf.runtime.streaming_plan import StreamingPlan, plan_streaming
from cerebras_tf.swarmx import mpi
from tests.machines import client_of, contents, store_of, variables_of
from tests.runtime.test_packing import Compiler, batch, session_of
from tests.steps import BATCH, StepBuilder, expected, features_of, residual_step, starting_values
from tests.swarmx.ranks import needs_mpi, on_ranks

STEPS = 3


def batches(rows):
    """Features of some steps for one wafer that has so many rows."""
    return [features_of(residual_step(rows=rows), seed) for seed in range(STEPS)]


def options_of(backend, wafers, streaming, files, fitted):
    """How to compile; from files, all that waits rests there, and activations as far as need be."""
    if not files:
        return Options(streaming=streaming, price=backend.price, wafers=wafers)
    spilling._LEAST_BYTES = 0  # in this process of its own
    speeds, room = Speeds(1e3, 1e12), SpillSpace(10**9, 1e12, 1e12, 0.0)
    budget = Budget(1, lambda: speeds, fitted.append, lambda program: room)
    return Options(True, price=backend.price, wafers=wafers, staging=True, budget=budget)


def train(clip, streaming, blocks, rows, files=None, ram_bytes=10**6):
    """What every rank does: trains on its rows, and returns what it has seen."""
    swarm = mpi.swarm()
    step = residual_step(blocks, clip, rows=rows)
    backend = CpuBackend(swarm)
    fitted = []
    program = compile_step(step, options_of(backend, swarm.size, streaming, files, fitted))
    specs = step.specs.values()
    here = MemoryStore(specs)
    if files:
        here = FileStore(specs, FileDisk(f"{files}/rank_{swarm.rank}", ram_bytes))
    store = SharedStore(here, swarm)
    store.shard(program.owners)
    for name, content in starting_values(residual_step(blocks, clip)).items():
        write(store, name, content)
    session = client_of(program, store, backend, swarm=swarm)
    losses = []
    sent = []
    moved = (0, 0)
    for features in batches(rows * swarm.size):
        part = slice(swarm.rank * rows, (swarm.rank + 1) * rows)
        before, traffic = swarm.traffic.sent_bytes, replace(here.io_stats)
        losses.append(float(session.run({n: x[part] for n, x in features.items()})["loss"]))
        sent.append(swarm.traffic.sent_bytes - before)
        now = here.io_stats
        moved = now.bytes_read - traffic.bytes_read, now.bytes_written - traffic.bytes_written
    foreseen = 0.0
    if files:  # a store reads ahead where it is asked for what it was told
        foreseen = here._access_order.position / len(here._access_order.order)
    kept = sum(spec.type.bytes for name, spec in store.specs.items() if store._is_local(name))
    seen = Seen(losses, contents(store), kept, sent[1:], sent_bytes(program)[swarm.rank])
    seen.staged, seen.foreseen, seen.moved = list(program.staged), foreseen, moved
    if files:
        seen.plan = plan_streaming(program, specs, ram_bytes, backend, swarm.rank)
    store.close()
    return seen


@dataclass
class Seen:
    """What a rank has seen."""

    losses: list
    state: dict
    kept: int
    sent: list
    planned: int
    staged: list = field(default_factory=list)
    foreseen: float = 0.0
    moved: tuple = (0, 0)
    plan: StreamingPlan | None = None


def check_as_one(found, clip, blocks, rows):
    """All ranks end with the state of one wafer that has all rows."""
    losses = []
    values = starting_values(residual_step(blocks, clip))
    for features in batches(rows * len(found)):
        one = residual_step(blocks, clip, rows=rows * len(found))
        results, values = expected(one, values, [features])
        losses.append(float(results["loss"]))
    np.testing.assert_allclose(np.mean([f.losses for f in found], axis=0), losses, rtol=1e-6)
    for seen in found:
        for name, wanted in values.items():
            np.testing.assert_allclose(seen.state[name], wanted, rtol=2e-5, atol=1e-6)
            assert np.array_equal(seen.state[name], found[0].state[name])


@needs_mpi()
@pytest.mark.parametrize(
    "wafers, clip, streaming, blocks",
    [(2, False, True, 4), (3, True, True, 8), (2, True, False, 4)],
)
def test_wafers_train_as_one_with_all_rows(wafers, clip, streaming, blocks, tmp_path):
    found = on_ranks(wafers, train, tmp_path, clip, streaming, blocks, BATCH)
    check_as_one(found, clip, blocks, BATCH)
    for seen in found:
        for sent in seen.sent:
            assert sent == pytest.approx(seen.planned, rel=0.05)
    sizes = [spec.type.bytes for spec in residual_step(blocks, clip).specs.values()]
    assert sum(seen.kept for seen in found) == sum(sizes)
    layer = 3 * max(sizes)  # a layer is not divided: two kernels and their speed
    assert max(seen.kept for seen in found) <= sum(sizes) / wafers + layer


@needs_mpi()
def test_what_waits_rests_on_the_files_of_the_wafer_that_reads_it(tmp_path):
    found = on_ranks(2, train, tmp_path, True, True, 4, 16 * BATCH, str(tmp_path))
    check_as_one(found, True, 4, 16 * BATCH)
    assert any("staged_gradient" in name for name in found[0].staged)
    assert any("spilled_activation" in name for name in found[0].staged)
    assert [seen.foreseen for seen in found] == [STEPS, STEPS]


@needs_mpi()
def test_the_plan_of_each_wafer_says_what_its_files_move(tmp_path):
    sizes = [spec.type.bytes for spec in residual_step(16, True).specs.values()]
    ram_bytes = 20 * max(sizes)  # far less than each keeps
    found = on_ranks(2, train, tmp_path, True, True, 16, BATCH, str(tmp_path), ram_bytes)
    for seen in found:
        plan = seen.plan
        assert seen.moved == pytest.approx((plan.bytes_read, plan.bytes_written), rel=0.05)
        assert plan.weight_bytes + plan.state_bytes == seen.kept
    assert all(sum(seen.moved) for seen in found)


def train_tags(strip):
    """What every rank does: trains on sequences; in the second step padding of rank 1 is needed."""
    swarm = mpi.swarm()
    source = Compiler(strip, wafers=swarm.size)
    alone = session_of(source)  # for its starting values
    store = SharedStore(store_of(alone.session.specs.values(), variables_of(alone)), swarm)
    session = client_of(source, store, CpuBackend(swarm), swarm=swarm)
    losses = []
    for number, lengths in enumerate([(3, 9, 1, 6), (2, 2, 5, 1), (9, 4, 4, 7)]):
        given = batch(lengths, 10 * number + swarm.rank)
        if number == swarm.rank == 1:
            given["mask"][0] = given["mask"][0, ::-1]
        losses.append(float(session.run(given)["loss"]))
    return source.reasons, losses, contents(store)


@needs_mpi()
def test_a_batch_that_needs_its_padding_has_all_wafers_compute_it(tmp_path):
    for strip in (True, False):  # kernels are compiled once, and no rank waits for it
        session_of(Compiler(strip)).run(batch((3, 9, 1, 6)))
    packed, padded = (on_ranks(2, train_tags, tmp_path, strip) for strip in (True, False))
    for (reasons, losses, state), (_, wanted, left) in zip(packed, padded):
        assert len(reasons) == 2 and "sequence 0 of the batch has padding before" in reasons[1]
        np.testing.assert_allclose(losses, wanted, rtol=1e-5)
        for name, value in left.items():
            np.testing.assert_allclose(state[name], value, 1e-5, 1e-6, err_msg=name)
            assert np.array_equal(state[name], packed[0][2][name])


def table_step(rows):
    """Rows of a table are trained by their sparse gradient, each shortened before they add up."""
    s = StepBuilder()
    b, table = s.b, s.variable("table", 6, 3)
    ids, target = s.feature("ids", rows, dtype="int32"), s.feature("target", rows, 3)
    x = b.op("gather", table, ids, axis=0, batch_dims=0)
    loss = b.op("mean", b.op("squared_difference", x, target), axes=(0, 1), keepdims=False)
    (dx,) = b.multi("gradient", loss, x, ys=1, dys=(False,), xs=1)
    dx, numbers = b.multi("parameter_gradient", dx, ids, variable="table")
    moved = b.op("scatter_add_rows", numbers, b.op("mul", dx, 0.5), num_rows=6)
    s.step.updates["table"] = b.op("sub", table, moved)
    return s.done(loss=loss)


def table_batches(rows):
    random = np.random.default_rng(4)
    for _ in range(STEPS):
        ids = random.integers(0, 6, rows).astype("int32")
        yield {"ids": ids, "target": random.standard_normal((rows, 3)).astype("f")}


def train_table(rows):
    """What every rank does."""
    swarm, step = mpi.swarm(), table_step(rows)
    program = compile_step(step, Options(wafers=swarm.size))
    store = SharedStore(MemoryStore(step.specs.values()), swarm)
    store.shard(program.owners)
    write(store, "table", starting_values(table_step(rows))["table"])
    session = client_of(program, store, CpuBackend(swarm), swarm=swarm)
    part = slice(swarm.rank * rows, (swarm.rank + 1) * rows)
    for features in table_batches(rows * swarm.size):
        session.run({name: x[part] for name, x in features.items()})
    return contents(store)["table"]


@needs_mpi()
def test_rows_of_sparse_gradients_are_those_of_all_wafers(tmp_path):
    step = table_step(8)
    _, wanted = expected(step, starting_values(step), list(table_batches(8)))
    for found in on_ranks(2, train_table, tmp_path, 4):
        np.testing.assert_allclose(found, wanted["table"], rtol=2e-5, atol=1e-6)
