"""CONTRIBUTING's recipes hold: they name what the protocols have, and following them is enough.

Each is followed to the letter here by a small extension, which is taken away again.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest

from cerebras_tf.compiler import spilling
from cerebras_tf.compiler.pipeline import Options, compile_step
from cerebras_tf.errors import CheckpointError, GraphError
from cerebras_tf.frontend.program_source import CompilingSource
from cerebras_tf.ir.program_file import load_program, save_program
from cerebras_tf.ir.schedule import ENTRY_KINDS, Actions, Entry, entry_kind
from cerebras_tf.kernels.registry import COMPILED, PLAIN, compiled, plain
from cerebras_tf.memoryx.borrowing_store import BorrowingStore
from cerebras_tf.memoryx.file_store import FileStore
from cerebras_tf.memoryx.store import BaseStore, MemoryStore, Store, write
from cerebras_tf.ops import OPS
from cerebras_tf.ops.registry import register
from cerebras_tf.ops.rows import elementwise
from cerebras_tf.runtime.backend import Backend
from cerebras_tf.runtime.client import ProgramSource, SavedProgram
from cerebras_tf.runtime.cpu import STRUCTURAL, CpuBackend
from cerebras_tf.runtime.executor import Executor, Listener, LoadedEntry, Loader
from cerebras_tf.runtime.null import NullBackend
from tests.compiler.test_assemble import STEPS
from tests.machines import client_of, contents, store_of
from tests.runtime.test_null import Ledger
from tests.runtime.test_session import Compiler
from tests.runtime.test_subprogram import choosing_step, features_for
from tests.steps import StepBuilder, expected, features_of, residual_step, starting_values


class NpyStore(BaseStore):
    """Keeps every variable in a .npy file; in memory are those that somebody holds."""

    def __init__(self, specs, folder):
        super().__init__(specs)
        self._all = dict(self._specs)
        self._folder = folder
        self._arrays, self._users = {}, Counter()
        self.order, self.max_bytes, self._version = [], 0, 0

    def _path(self, name):
        return self._folder / f"{list(self._all).index(name)}.npy"

    def has_value(self, name):
        return self._path(name).exists()

    def acquire(self, names, fresh=False):
        for name in names:
            if name not in self._arrays and fresh:
                type = self._all[name].type
                self._arrays[name] = np.empty(type.static_shape, type.storage_dtype)
            elif name not in self._arrays:
                if not self.has_value(name):
                    raise CheckpointError(f"variable {name}: must have a value. Received: none.")
                self._arrays[name] = np.load(self._path(name))
            self._users[name] += 1
        self.max_bytes = max(self.max_bytes, self.resident_bytes)
        return [self._arrays[name] for name in names]

    def release(self, names, dirty=()):
        for name in dirty:
            np.save(self._path(name), self._arrays[name])
            self._version += name in self._specs
        for name in names:
            self._users[name] -= 1
            if not self._users[name]:
                del self._arrays[name]

    def set_access_order(self, order):
        self.order = [list(names) for names in order]

    @property
    def version(self):
        return self._version

    @property
    def resident_bytes(self):
        return sum(array.nbytes for array in self._arrays.values())

    def reserve(self, specs):
        self._all.update((spec.name, spec) for spec in specs)

    def not_finite(self, names):
        return [name for name in names if not np.isfinite(np.load(self._path(name))).all()]


class CountingBackend:
    """CpuBackend with the number of calls of every method, and "run" of those that it loaded."""

    def __init__(self):
        self._of = CpuBackend()
        self.calls = Counter()

    def _passed(self, method, *given):
        self.calls[method] += 1
        return getattr(self._of, method)(*given)

    def allocate(self, size):
        return self._passed("allocate", size)

    def place(self, memory, type, offset):
        return self._passed("place", memory, type, offset)

    def load(self, instruction, inputs, outputs):
        if instruction.op in STRUCTURAL:
            call = STRUCTURAL[instruction.op](instruction, self, inputs, outputs)
        else:
            call = self._passed("load", instruction, inputs, outputs)

        def counted(arrays, out):
            self.calls["run"] += 1
            return call(arrays, out)

        return counted

    def price(self, op, inputs, outputs, attrs):
        return self._passed("price", op, inputs, outputs, attrs)

    def scratch(self, size):
        return self._passed("scratch", size)

    def copy(self, target, source):
        self._passed("copy", target, source)

    def constant(self, content, dtype):
        return self._passed("constant", content, dtype)

    def upload(self, arrays):
        return self._passed("upload", arrays)

    def download(self, array):
        return self._passed("download", array)

    def download_into(self, target, source):
        self._passed("download_into", target, source)

    def begin(self):
        self._passed("begin")

    def peak_bytes(self):
        return self._passed("peak_bytes")


@dataclass(frozen=True)
class Mark(Entry):
    """An entry that records its label."""

    kind = "mark"
    label: str
    places: tuple[tuple[str, int], ...]


class LoadedMark(LoadedEntry):
    """Records the label."""

    __slots__ = ()

    def run(self, executor):
        executor.marks = [*getattr(executor, "marks", []), self.entry.label]


class MarkingLoader(Loader):
    """A loader that knows the kind."""

    def mark(self, entry):
        self.entries.append(LoadedMark(entry))


class MarkingExecutor(Executor):
    """An executor that knows the kind."""

    loader = MarkingLoader


@pytest.fixture
def mark_kind():
    yield entry_kind(Mark)
    del ENTRY_KINDS["mark"]


@pytest.fixture
def softsign():
    """The example of the first recipe: places 1 and 2."""

    def vjp(b, node, dys):
        (dy,), (x,) = dys, node.inputs
        below = b.op("square", b.op("add", b.op("abs", x), 1.0))
        return [None if dy is None else b.op("div", dy, below)]

    def run(x, *, out):
        plain_form(x, out=out[0])

    def plain_form(x, out=None):
        return np.divide(x, 1 + np.abs(x), out=out)

    register("softsign", lambda inputs, attrs: [inputs[0].type], vjp, rows=elementwise)
    plain("softsign")(lambda x: plain_form(x))
    compiled("softsign")(run)
    yield run
    for table in (OPS, PLAIN, COMPILED):
        del table["softsign"]


# Heading -> protocol, what implements it, and calls that the recipe names besides.
RECIPES = {
    "Add a store": (Store, [MemoryStore, BorrowingStore, FileStore, NpyStore], {}),
    "Add an entry kind": (Actions, [Loader], {"apply": Entry.apply}),
    "Add a listener": (Listener, [Ledger], {}),
    "Add a backend": (Backend, [CpuBackend, NullBackend, CountingBackend], {}),
    "Add a program source": (ProgramSource, [SavedProgram, Compiler], {}),
}


@pytest.fixture(scope="module")
def recipes(root):
    """The text of every recipe, by heading."""
    parts = re.split(r"^## (.+)$", (root / "CONTRIBUTING.md").read_text("utf-8"), flags=re.M)
    return dict(zip(parts[1::2], parts[2::2]))


def named(text):
    """Names in a recipe's code, and for those that stand as calls the arguments."""
    found = {}
    for name, arguments in re.findall(r"`(\w+)(\([\w, ]*\))?`", text):
        found[name] = [a for a in re.split(r"[(), ]+", arguments) if a] if arguments else None
    return found


def arguments(function):
    """Names of a method's parameters."""
    return [name for name in inspect.signature(function).parameters if name != "self"]


def members(protocol):
    """Public methods and properties of a protocol, with their arguments."""
    found = {name: x for name, x in vars(protocol).items() if not name.startswith("_")}
    return {name: arguments(x) if callable(x) else None for name, x in found.items()}


@pytest.mark.parametrize("heading", RECIPES)
def test_recipes_name_all_that_a_protocol_asks_for_and_nothing_else(heading, recipes):
    protocol, _, besides = RECIPES[heading]
    wanted, found = members(protocol), named(recipes[heading])
    assert wanted
    assert {name: found.get(name, "not named") for name in wanted} == wanted
    calls = {name: given for name, given in found.items() if given is not None}
    extra = {name: given for name, given in calls.items() if name not in wanted}
    assert extra == {name: arguments(function) for name, function in besides.items()}


@pytest.mark.parametrize("heading", RECIPES)
def test_implementations_have_all_that_a_protocol_asks_for(heading):
    protocol, implementations, _ = RECIPES[heading]
    for kind in implementations:
        for name, wanted in members(protocol).items():
            member = inspect.getattr_static(kind, name, None)
            assert member is not None, f"{kind.__name__}.{name}"
            if wanted is not None:
                assert arguments(member) == wanted, f"{kind.__name__}.{name}"


def test_the_source_of_a_front_end_has_the_members_of_a_program_source():
    for name, wanted in members(ProgramSource).items():
        assert arguments(getattr(CompilingSource, name)) == wanted


def test_entry_kinds_call_the_actions_that_are_declared():
    asked = []

    class Asked:
        def __getattr__(self, name):
            return lambda step: asked.append(name)

    for kind in ENTRY_KINDS.values():
        kind.apply(object.__new__(kind), Asked())
    assert sorted(asked) == sorted(members(Actions))


def trained(step, store, backend, staging=False, batches=3):
    """Losses of a session on a store, bit by bit."""
    for name, content in starting_values(step).items():
        write(store, name, content)
    program = compile_step(step, Options(price=backend.price, staging=staging))
    session = client_of(program, store, backend)
    return [session.run(features_of(step, seed))["loss"].tobytes() for seed in range(batches)]


@pytest.mark.parametrize("clip", [False, True])
def test_a_store_made_by_the_recipe_trains_bit_for_bit(clip, tmp_path, monkeypatch):
    monkeypatch.setattr(spilling, "_LEAST_BYTES", 0)
    steps = [residual_step(6, clip) for _ in range(2)]
    memory, files = (
        MemoryStore(steps[0].specs.values()),
        NpyStore(steps[1].specs.values(), tmp_path),
    )
    wanted, found = (
        trained(steps[0], memory, CpuBackend()),
        trained(steps[1], files, CpuBackend(), staging=True),
    )
    assert wanted == found
    wanted, found = contents(memory), contents(files)
    for name in wanted:
        np.testing.assert_array_equal(found[name], wanted[name])
    assert files.resident_bytes == 0
    assert files.max_bytes < files.total_resident_bytes / 3
    staged = {name for group in files.order for name in group} - set(files.specs)
    assert bool(staged) == clip


def test_a_store_made_by_the_recipe_refuses_variables_without_a_value(tmp_path):
    step = residual_step(1)
    store = NpyStore(step.specs.values(), tmp_path)
    executor = Executor(compile_step(step), store, CpuBackend())
    with pytest.raises(CheckpointError, match="must have a value"):
        executor.run(features_of(step))


def test_an_entry_kind_is_saved_printed_and_applied(mark_kind, tmp_path):
    step = residual_step(2)
    program = compile_step(step)
    quiet = Executor(program, store_of(step.specs.values(), starting_values(step)), CpuBackend())
    wanted = quiet.run(features_of(step))
    steps = list(program.schedule)
    program.schedule = [Mark("first", (("x", 1),)), *steps, Mark("last", ())]
    save_program(program, tmp_path / "marked")
    loaded = load_program(tmp_path / "marked")
    assert loaded.schedule == program.schedule
    assert str(loaded.schedule[0]) == "mark(label=first, places=(('x', 1),))"
    store = store_of(step.specs.values(), starting_values(step))
    executor = MarkingExecutor(loaded, store, CpuBackend())
    found = executor.run(features_of(step))
    assert executor.marks == ["first", "last"]
    for name in wanted:
        np.testing.assert_array_equal(found[name], wanted[name])


def test_an_entry_kind_has_its_own_name(mark_kind):
    with pytest.raises(GraphError, match="names must differ. Received: mark twice"):
        entry_kind(mark_kind)


def test_a_listener_of_a_session_counts_its_steps_and_prices_them():
    step = residual_step(2)
    program = compile_step(step, Options(price=CpuBackend().price))
    ledger = Ledger(program)
    store = store_of(step.specs.values(), starting_values(step))
    session = client_of(program, store, listeners=[ledger])
    for _ in range(2):
        session.run(features_of(step))
    assert ledger.kinds == 2 * [item.kind for item in program.schedule]
    assert ledger.flops == 2 * program.flops > 0


@pytest.mark.parametrize("name", ["clipped", "copies", "unknown sizes"])
def test_a_backend_made_by_the_recipe_runs_programs(name):
    step, backend = STEPS[name](), CountingBackend()
    variables = starting_values(step)
    wanted = expected(STEPS[name](), variables, [features_of(step)])
    program = compile_step(step, Options(price=backend.price))
    store = store_of(step.specs.values(), variables)
    executor = Executor(program, store, backend)
    found = executor.run(features_of(step)), contents(store)
    for ours, theirs in zip(found, wanted):
        for key in theirs:
            np.testing.assert_allclose(ours[key], theirs[key], rtol=2e-5, atol=1e-6)
    assert backend.calls["run"] == len(list(program.instructions()))
    assert backend.calls["load"] == sum(map(len, program.bodies))
    assert backend.calls["download"] >= len(program.results)
    assert backend.calls["allocate"] == backend.calls["begin"] == 1


def test_a_backend_made_by_the_recipe_runs_branches():
    step, backend = choosing_step(), CountingBackend()
    program = compile_step(step)
    store = store_of(step.specs.values(), starting_values(step))
    executor = Executor(program, store, backend)
    assert backend.calls["scratch"] == 2  # for each branch when it is loaded
    executor.run(features_for(step, 0, p=True))
    assert backend.calls["scratch"] == 3
    inside = 1  # the product
    assert backend.calls["run"] == len(list(program.instructions())) + inside


def test_the_first_recipes_call_is_one_that_register_takes(recipes):
    (code,) = re.findall(r"`(register\(.*?\))`", recipes["Add an op"])
    call = ast.parse(code, mode="eval").body
    given = inspect.signature(register)
    given.bind(*call.args, **{keyword.arg: keyword.value for keyword in call.keywords})


def test_an_op_made_by_the_recipe_trains(softsign):
    def step():
        s = StepBuilder()
        x, w = s.feature("x", 8, 4), s.variable("w", 4, 4)
        y = s.b.op("softsign", s.matmul(x, w))
        s.momentum(s.b.op("sum", s.b.op("square", y), axes=(0, 1), keepdims=False), ["w"], False)
        return s.done(y=y)

    made = step()
    variables, features = starting_values(made), features_of(made)
    results, state = expected(step(), variables, [features])
    store = store_of(made.specs.values(), variables)
    program = compile_step(made)
    assert "softsign" in {item.op for item in program.instructions()}
    found = Executor(program, store, CpuBackend()).run(features)
    np.testing.assert_allclose(found["y"], results["y"], rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(contents(store)["w"], state["w"], rtol=2e-5, atol=1e-6)
    assert np.any(state["w"] != variables["w"])
