"""A session without TensorFlow: programs by shapes, one memory, counted draws."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.compiler.assemble import replan
from cerebras_tf.compiler.pipeline import Options, compile_step
from cerebras_tf.errors import CapacityError, DataError
from cerebras_tf.ir import Dim, TensorType, Variable
from cerebras_tf.ir.dimensions import UNLIMITED
from cerebras_tf.ir.program import COMMON_RANDOM_STEP, RANDOM_STEP
from cerebras_tf.memoryx.store import MemoryStore
from cerebras_tf.runtime import session as session_module
from cerebras_tf.runtime.client import SavedProgram
from cerebras_tf.runtime.cpu import CpuBackend
from cerebras_tf.runtime.protocol import Request
from cerebras_tf.runtime.random_streams import RANDOM_STEP_KEY
from cerebras_tf.swarmx.swarm import Alone
from tests.machines import client_of, store_of
from tests.steps import StepBuilder, expected, features_of, residual_step, starting_values

WEIGHT = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)


def rows_step(rows, train=True):
    """Rows of tanh(x w), their sum, and the weight moved by a tenth of its gradient."""
    s = StepBuilder()
    x, w = s.feature("x", rows, 4), s.variable("w", 4, 4)
    y = s.b.op("tanh", s.matmul(x, w))
    loss = s.b.op("sum", y, axes=(0, 1), keepdims=False)
    if train:
        (gradient,) = s.gradients(loss, ["w"])
        s.step.updates["w"] = s.b.op("sub", w, s.b.op("mul", gradient, 0.1))
    return s.done(loss=loss, y=y)


class Compiler:
    """A source that compiles `rows_step` for a symbol, or for the number of rows that came."""

    def __init__(self, symbolic=True, train=True):
        self.compiled, self.enlarged = [], []
        self._symbolic, self._train = symbolic, train
        self._options = Options(price=CpuBackend().price)

    def compile(self, request):
        rows = request.types["x"].shape[0]
        self.compiled.append(rows)
        size = Dim.symbol("R", rows, UNLIMITED) if self._symbolic else rows
        return compile_step(rows_step(size, self._train and request.updates), self._options)

    def enlarge(self, program, bounds):
        self.enlarged.append(dict(bounds))
        return replan(program, bounds, self._options.price)


def session_of(source, backend=None, **given):
    store = store_of([Variable("w", TensorType("float32", (4, 4)), True)], {"w": WEIGHT})
    return client_of(source, store, backend, **given)


def batch(rows, seed=1):
    return np.random.default_rng(seed).standard_normal((rows, 4)).astype(np.float32)


def wanted_losses(batches):
    """By the plain kernels, each batch in a graph of its own."""
    losses, state = [], {"w": WEIGHT}
    for x in batches:
        results, state = expected(rows_step(len(x)), state, [{"x": x}])
        losses.append(results["loss"])
    return losses, state


@pytest.mark.parametrize("symbolic", [True, False])
def test_batches_of_all_lengths_train_in_turns(symbolic):
    batches = [batch(rows, seed) for seed, rows in enumerate((8, 3, 16, 8, 1, 40, 3))]
    session = session_of(Compiler(symbolic))
    losses = [session.run({"x": x})["loss"] for x in batches]
    wanted, state = wanted_losses(batches)
    np.testing.assert_allclose(losses, wanted, rtol=1e-5)
    np.testing.assert_allclose(session.session.get("w"), state["w"], rtol=1e-5)


def test_another_length_costs_no_compilation_and_a_longer_one_a_plan_of_memory():
    source = Compiler()
    session = session_of(source)
    for rows in (8, 3, 16, 8, 12, 16):
        session.run({"x": batch(rows)})
    assert source.compiled == [8]
    assert source.enlarged == [{"R": 16}]
    assert session.program.arena_bytes == session.prepare(request(16)).arena_bytes


def test_another_length_loads_only_what_its_size_concerns():
    loaded = []

    class Backend(CpuBackend):
        def load(self, instruction, inputs, outputs):
            loaded.append([dim for type in [*inputs, *outputs] for dim in type.shape])
            return super().load(instruction, inputs, outputs)

    session = session_of(Compiler(), backend=Backend())
    session.run({"x": batch(8)})
    every = len(loaded)
    loaded.clear()
    session.run({"x": batch(5)})
    assert 0 < len(loaded) < every
    assert all(5 in dims for dims in loaded), loaded


def request(rows, wanted=frozenset(), updates=True):
    return Request({"x": TensorType("float32", (rows, 4))}, wanted, updates)


class LoadCounter(CpuBackend):
    """Counts the instructions that were loaded."""

    loads = 0

    def load(self, instruction, inputs, outputs):
        self.loads += 1
        return super().load(instruction, inputs, outputs)


def test_a_program_is_loaded_once_for_every_size():
    backend = LoadCounter()
    client = session_of(Compiler(), backend=backend)
    loads = []
    for rows in (8, 8, 5, 5, 8):
        client.prepare(request(rows))
        loads.append(backend.loads)
    assert loads[0] == loads[1] < loads[2] == loads[3] == loads[4]
    assert client.session.held_bytes == WEIGHT.nbytes  # no step has written activations


def test_a_step_without_updates_changes_no_variable_and_draws_nothing_anew():
    session = session_of(Compiler())
    session.run({"x": batch(8)}, updates=False)
    np.testing.assert_array_equal(session.session.get("w"), WEIGHT)
    assert session.session.random_state() == {}
    session.run({"x": batch(8)})
    assert session.session.random_state() == {RANDOM_STEP_KEY: 1}
    assert np.any(session.session.get("w") != WEIGHT)


def test_a_session_that_does_not_train_draws_anew_at_every_step():
    s = StepBuilder()
    x, draws = s.feature("x", 4), s.feature(RANDOM_STEP, dtype="int64")
    seeds = s.b.constant(np.array([1, 2], np.int64))
    noise = s.b.op("random_uniform", draws, seeds, shape=(4,), dtype="float32")
    program = compile_step(s.done(y=s.b.op("add", x, noise)))
    session = client_of(program, MemoryStore([]), trains=False)
    features = {"x": np.zeros(4, np.float32)}
    first, second = (session.run(features, updates=False)["y"] for _ in range(2))
    assert np.all(first != second)
    again = client_of(program, MemoryStore([]), trains=False)
    again.session.restore_random_state({RANDOM_STEP_KEY: 1})
    np.testing.assert_array_equal(again.run(features, updates=False)["y"], second)


def test_wafers_draw_each_for_itself_but_alike_for_what_each_keeps():
    found = []
    for rank in range(2):
        s = StepBuilder()
        s.feature("x", 4)
        seeds = s.b.constant(np.array([1, 2], np.int64))
        drawn = {
            name: s.b.op(
                "random_uniform", s.feature(name, dtype="int64"), seeds, shape=(4,), dtype="float32"
            )
            for name in (RANDOM_STEP, COMMON_RANDOM_STEP)
        }
        swarm = Alone()
        swarm.rank, swarm.size = rank, 2
        program = compile_step(s.done(**drawn), Options(wafers=2))
        session = client_of(program, MemoryStore([]), trains=False, swarm=swarm)
        session.session.restore_random_state({RANDOM_STEP_KEY: 6})
        found.append(session.run({"x": np.zeros(4, np.float32)}, updates=False))
    first, second = found
    np.testing.assert_array_equal(first[COMMON_RANDOM_STEP], second[COMMON_RANDOM_STEP])
    assert np.all(first[RANDOM_STEP] != second[RANDOM_STEP])


def test_numbers_and_scalars_of_numpy_are_features():
    """A NumPy scalar's memory is gone before a kernel reads it."""
    s = StepBuilder()
    y = s.b.op("mul", s.b.op("add", s.feature("x", 3), s.feature("rate")), 2.0)
    session = client_of(compile_step(s.done(y=y)), MemoryStore([]), trains=False)
    for rate in (np.float32(0.5), np.array(0.5, np.float32), np.ones(2, np.float32)[0] / 2):
        for _ in range(20):
            found = session.run(
                {"x": np.ones(3, np.float32), "rate": np.float32(rate)}, frozenset()
            )
            np.testing.assert_array_equal(found["y"], np.full(3, 3, np.float32))


def test_features_of_bfloat16_are_given_as_numbers_or_bits():
    s = StepBuilder()
    y = s.b.op("mul", s.feature("x", 2, dtype="bfloat16"), 1.0)
    program = compile_step(s.done(y=y), Options(precision="emulate"))
    session = client_of(program, MemoryStore([]), trains=False)
    with pytest.raises(DataError, match=r"features must be x bfloat16\[2\]"):
        session.run({"x": np.ones(2, np.float32)})


def test_a_saved_program_refuses_other_features_and_other_wishes():
    program = compile_step(rows_step(8))
    session = session_of(SavedProgram(program))
    with pytest.raises(DataError, match=r"features must be x float32\[8,4\]. Received: x float32"):
        session.run({"x": batch(5)})
    with pytest.raises(DataError, match="must be among its results, .*Received: gradient"):
        session.run({"x": batch(8)}, frozenset({"gradient"}))


def test_a_saved_program_with_symbols_says_how_far_it_goes():
    session = session_of(SavedProgram(compile_step(rows_step(Dim.symbol("R", 8)))))
    with pytest.raises(
        DataError, match=r"features must be x float32\[R<=8,4\]. Received: x float32"
    ):
        session.run({"x": batch(9)})
    program = compile_step(rows_step(Dim.symbol("R", 8, UNLIMITED)))
    session = session_of(SavedProgram(program))
    session.run({"x": batch(5)})
    with pytest.raises(DataError, match=r"sizes must be at most \{'R': 8\}. Received: \{'R': 9\}"):
        session.run({"x": batch(9)})


def test_a_program_too_large_for_this_machine_is_refused_before_it_runs(monkeypatch):
    session = session_of(Compiler())
    session.run({"x": batch(8)})
    monkeypatch.setattr("cerebras_tf.runtime.capacity.available_bytes", lambda: 10)
    with pytest.raises(CapacityError, match="this model needs"):
        session.run({"x": batch(4000)})


def test_beyond_the_most_the_variant_goes_that_was_used_longest_ago(monkeypatch):
    monkeypatch.setattr(session_module, "MAX_VARIANTS", 2)
    source = Compiler(symbolic=False)
    session = session_of(source)
    for rows in (1, 2, 1, 3, 3, 1, 2):
        session.run({"x": batch(rows)})
    assert source.compiled == [1, 2, 3, 2]


def test_beyond_the_most_the_size_goes_that_was_used_longest_ago(monkeypatch):
    monkeypatch.setattr(session_module, "MAX_SIZES", 2)
    backend = LoadCounter()
    client = session_of(Compiler(), backend=backend)
    loaded = []
    for rows in (3, 2, 3, 1, 3, 2):
        before = backend.loads
        client.prepare(request(rows))
        loaded.append(backend.loads > before)
    assert loaded == [True, True, False, True, False, True]


def test_the_memory_mark_holds_variables_activations_and_scratch():
    step = residual_step(3)
    store = store_of(step.specs.values(), starting_values(step))
    program = compile_step(step, Options(price=CpuBackend().price))
    session = client_of(program, store)
    assert session.session.peak_bytes == 0
    session.run(features_of(step))
    least = store.resident_bytes + program.arena_bytes
    assert least <= session.session.peak_bytes <= least + program.scratch_bytes


def test_the_store_is_told_the_order_of_the_layers():
    step = residual_step(2)
    followed = []

    class Store(MemoryStore):
        def set_access_order(self, order):
            followed.append(order)

    store = Store(step.specs.values())
    for name, content in starting_values(step).items():
        (array,) = store.acquire([name], fresh=True)
        array[...] = content
        store.release([name], dirty=[name])
    session = client_of(compile_step(step), store)
    for _ in range(2):
        session.run(features_of(step))
    assert followed[0] is followed[1], "a store may tell a repetition by identity"
    assert {name for group in followed[0] for name in group} == set(step.specs)
