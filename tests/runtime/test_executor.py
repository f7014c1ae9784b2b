"""The executor runs a schedule step by step and hands out copies."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.compiler.pipeline import Options, compile_step
from cerebras_tf.errors import CapacityError, UnsupportedOpError
from cerebras_tf.ir import TensorType, Variable
from cerebras_tf.ir.program import ARENA, FEATURE, VARIABLE, Instruction, Program, Slot
from cerebras_tf.ir.schedule import Free, OnWafer, Run, StreamIn, StreamOut
from cerebras_tf.kernels.scratch import ALIGNMENT_BYTES
from cerebras_tf.memoryx.store import MemoryStore, write
from cerebras_tf.runtime.cpu import CpuBackend
from cerebras_tf.runtime.executor import Executor
from tests.machines import contents, store_of
from tests.steps import StepBuilder, features_of, residual_step, starting_values


def loaded(program, step, listeners=(), arena=None):
    store = store_of(step.specs.values(), starting_values(step))
    return Executor(program, store, CpuBackend(), listeners, arena)


@pytest.fixture
def step():
    return residual_step(2)


@pytest.fixture
def program(step):
    return compile_step(step)


class Recorder:
    def __init__(self):
        self.seen = []

    def begin(self, program):
        pass

    def before(self, entry):
        self.seen.append(("before", entry))

    def after(self, entry):
        self.seen.append(("after", entry))


def test_listeners_see_every_entry_before_and_after(program, step):
    recorder = Recorder()
    executor = loaded(program, step, [recorder])
    executor.run(features_of(step))
    wanted = [(when, item) for item in program.schedule for when in ("before", "after")]
    assert recorder.seen == wanted


def test_listeners_change_no_number(program, step):
    quiet = loaded(program, step).run(features_of(step))
    watched = loaded(program, step, [Recorder(), Recorder()]).run(features_of(step))
    for name in quiet:
        np.testing.assert_array_equal(quiet[name], watched[name])


def test_results_are_copies(program, step):
    executor = loaded(program, step)
    first = executor.run(features_of(step, 1))
    kept = {name: np.array(array) for name, array in first.items()}
    executor.run(features_of(step, 2))
    for name, array in first.items():
        np.testing.assert_array_equal(array, kept[name])
        assert not np.shares_memory(array, executor.arena)


def test_features_are_not_changed(program, step):
    features = features_of(step)
    kept = {name: np.array(array) for name, array in features.items()}
    loaded(program, step).run(features)
    for name in kept:
        np.testing.assert_array_equal(features[name], kept[name])


def test_two_machines_may_share_one_arena(program, step):
    """A training and an evaluation program run in turns on the memory of the larger."""
    forward_step = residual_step(2, train=False)
    forward = compile_step(forward_step)
    apart = [loaded(program, step), loaded(forward, forward_step)]
    arena = CpuBackend().allocate(max(program.arena_bytes, forward.arena_bytes))
    together = [loaded(program, step, arena=arena), loaded(forward, forward_step, arena=arena)]
    for _ in range(2):
        for alone, shared in zip(apart, together):
            wanted, found = (m.run(features_of(step)) for m in (alone, shared))
            for name in wanted:
                np.testing.assert_array_equal(found[name], wanted[name])


def test_bind_moves_the_activations(program, step):
    executor = loaded(program, step)
    other = loaded(program, step)
    other.bind(CpuBackend().allocate(program.arena_bytes))
    executor.arena[:] = 0xFF
    wanted, found = executor.run(features_of(step)), other.run(features_of(step))
    np.testing.assert_array_equal(found["out"], wanted["out"])
    before = np.array(other.arena)
    executor.run(features_of(step, 9))
    np.testing.assert_array_equal(other.arena, before)


def test_an_arena_starts_on_a_cache_line():
    for size in (1, 100, 1000):
        arena = CpuBackend().allocate(size)
        assert arena.nbytes == size
        assert arena.ctypes.data % ALIGNMENT_BYTES == 0


def test_an_arena_larger_than_the_machine_is_refused_with_a_remedy():
    with pytest.raises(CapacityError, match="must fit in memory. Received: 1000000000.0 GB"):
        CpuBackend().allocate(10**18)


def test_an_op_without_a_kernel_is_found_when_the_program_is_loaded():
    program = Program(bodies=[[Instruction("frobnicate", (), (), {})]])
    program.schedule = [Run(0, "forward", 0, ())]
    with pytest.raises(UnsupportedOpError, match="op frobnicate"):
        Executor(program, MemoryStore([]), CpuBackend())


def test_variables_are_released_where_a_result_cannot_be_read(step):
    class Full(CpuBackend):
        def download(self, array):
            raise MemoryError

    program = compile_step(step, Options(streaming=False))  # the schedule holds them to the end
    store = store_of(step.specs.values(), starting_values(step))
    with pytest.raises(MemoryError):
        Executor(program, store, Full()).run(features_of(step))
    for name in program.variables:
        with pytest.raises(RuntimeError, match="it was not acquired"):
            store.release([name])


class StreamedStore(MemoryStore):
    """Variables are acquired for each entry, as from files."""

    gives_views = False


class Counting(MemoryStore):
    """Counts calls; `gives_views` may be set."""

    def __init__(self, specs):
        super().__init__(specs)
        self.acquired = []

    def acquire(self, names, fresh=False):
        self.acquired.append(list(names))
        return super().acquire(names, fresh)


@pytest.mark.parametrize("listeners", [[], [Recorder()]])
def test_a_store_that_stays_in_memory_is_asked_once_a_step(program, step, listeners):
    found = {}
    for stays in (True, False):
        store = Counting(step.specs.values())
        store.gives_views = stays
        for name, content in starting_values(step).items():
            write(store, name, content)
        executor = Executor(program, store, CpuBackend(), listeners)
        results = []
        for _ in range(2):
            store.acquired.clear()
            results.append(executor.run(features_of(step)))
        values = {name: np.array(store.acquire([name])[0]) for name in step.specs}
        found[stays] = results, values, executor.bytes_in, executor.bytes_out, store.acquired
    kept, streamed = found[True], found[False]
    assert kept[2:4] == streamed[2:4]
    for one, other in zip([*kept[0], kept[1]], [*streamed[0], streamed[1]]):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])
    assert len(kept[4]) == 1 + len(step.specs)
    assert len(streamed[4]) > len(kept[4])


def test_a_step_may_read_a_variable_whose_first_value_it_makes():
    type = TensorType("float32", (2,))
    program = Program(
        slots=[Slot(type, FEATURE), Slot(type, VARIABLE)],
        features={"x": 0},
        variables={"w": 1},
        results={"read": 1},
        schedule=[StreamOut(0, (("w", 0),)), StreamIn(0, (1,))],
    )
    executor = Executor(program, MemoryStore([Variable("w", type)]), CpuBackend())
    given = np.array([1, 2], np.float32)
    np.testing.assert_array_equal(executor.run({"x": given})["read"], given)


def test_a_step_streams_every_weight_forward_and_backward(program, step):
    executor = loaded(program, step)
    executor.run(features_of(step))
    state = sum(spec.type.bytes for spec in step.specs.values())
    assert executor.bytes_out == state
    assert executor.bytes_in > 1.5 * state


def test_pipelined_mode_streams_every_weight_once_a_step():
    step = residual_step(2)
    executor = loaded(compile_step(step, Options(streaming=False)), step)
    executor.run(features_of(step))
    assert executor.bytes_in == executor.bytes_out
    assert executor.bytes_in == sum(spec.type.bytes for spec in step.specs.values())


def test_values_that_are_not_finite_raise_no_warning(program, step, recwarn):
    executor = loaded(program, step)
    features = {name: np.full_like(a, 3e38) for name, a in features_of(step).items()}
    assert not np.isfinite(executor.run(features)["loss"])
    assert not recwarn.list


def test_the_arena_holds_every_activation(program, step):
    executor = loaded(program, step)
    for slot in program.slots:
        if slot.kind == ARENA:
            assert slot.offset + slot.type.bytes <= executor.arena.nbytes


def test_entries_of_another_wafer_are_not_loaded(program, step):
    recorder, count = Recorder(), len(program.schedule)
    program.schedule.insert(0, OnWafer(3, 2))
    program.schedule[1:1] = [Free(()), Free(())]
    loaded(program, step, [recorder]).run(features_of(step))
    assert len(recorder.seen) == 2 * (count + 1)


class DeviceBackend(CpuBackend):
    """Works on copies of host arrays, as a processor with memory of its own does."""

    def upload(self, arrays):
        return [np.array(array) for array in arrays]


@pytest.mark.parametrize("kind", [MemoryStore, StreamedStore])
def test_a_backend_with_memory_of_its_own_trains_bit_for_bit(step, program, kind):
    found = []
    for backend in (CpuBackend(), DeviceBackend()):
        store = kind(step.specs.values())
        for name, content in starting_values(step).items():
            write(store, name, content)
        executor = Executor(program, store, backend)
        results = [executor.run(features_of(step, seed)) for seed in range(3)]
        found.append(({**results[-1]}, contents(store)))
    for ours, theirs in zip(*found):
        for name in ours:
            np.testing.assert_array_equal(theirs[name], ours[name])


def reshaping_step():
    """Reshapes of what lies in the arena, and of views of it that are made at every step."""
    s = StepBuilder()
    x, weight = s.feature("x", 4, 6), s.variable("weight", 6, 6)
    hidden = s.b.op("tanh", s.matmul(x, weight))
    piece = s.b.op("slice", hidden, starts=(1, 0), sizes=(2, 6), strides=(1, 1))
    rows = s.b.op("reshape", hidden, shape=(12, 2))
    return s.done(
        whole=s.b.op("exp", s.b.op("reshape", hidden, shape=(24,))),
        part=s.b.op("exp", s.b.op("reshape", piece, shape=(3, 4))),
        again=s.b.op("exp", s.b.op("reshape", rows, shape=(8, 3))),
    )


@pytest.mark.parametrize("fused", [False, True])
def test_views_show_what_is_in_memory_now(fused):
    step = reshaping_step()
    program = compile_step(step, Options(fuse=fused))
    executor = loaded(program, step)
    for seed, made in ((1, executor), (2, executor), (3, executor.resized({}))):
        given = features_of(step, seed)
        hidden = np.tanh(given["x"] @ starting_values(step)["weight"])
        found = made.run(given)
        for name, shown in (("whole", hidden), ("part", hidden[1:3]), ("again", hidden)):
            np.testing.assert_allclose(found[name].ravel(), np.exp(shown).ravel(), rtol=1e-5)
    executor.unbind()
    executor.bind(CpuBackend().allocate(program.arena_bytes))
    np.testing.assert_allclose(executor.run(given)["whole"], found["whole"], rtol=1e-6)
