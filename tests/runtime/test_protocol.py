"""What a session's client needs could travel over a wire: the same steps on both sides of one."""

from __future__ import annotations

import inspect
import io
import json
from dataclasses import fields, replace

import numpy as np
import pytest

from cerebras_tf.errors import CapacityError, CheckpointError, ConfigError, DataError
from cerebras_tf.ir import Variable
from cerebras_tf.ir.program_file import load_program, save_program
from cerebras_tf.ir.types import parse_type
from cerebras_tf.runtime.client import SessionClient
from cerebras_tf.runtime.cpu import CpuBackend
from cerebras_tf.runtime.protocol import (
    Accepted,
    Batch,
    Prepared,
    ProgramNeeded,
    Request,
    SessionProtocol,
    StepResult,
)
from cerebras_tf.runtime.random_streams import RANDOM_STEP_KEY
from cerebras_tf.runtime.saved_run import BundleFormat
from cerebras_tf.runtime.session import Session
from tests.machines import store_of, variables_of
from tests.runtime import test_packing as packing
from tests.runtime.test_session import WEIGHT, Compiler, batch, wanted_losses


def sent(message):
    """What arrives of a message that goes over a wire as JSON and arrays."""
    if isinstance(message, np.ndarray):
        file = io.BytesIO()
        np.save(file, message, allow_pickle=False)
        return np.load(io.BytesIO(file.getvalue()), allow_pickle=False)
    arrays = {}
    for name in ("features", "values"):
        if hasattr(message, name):
            arrays[name] = {key: sent(array) for key, array in getattr(message, name).items()}
            message = replace(message, **{name: {}})
    found = json.loads(json.dumps(_encoded(message)))
    return replace(_decoded(type(message), found), **arrays)


def _encoded(message):
    found = {item.name: getattr(message, item.name) for item in fields(message)}
    for name, value in found.items():
        if isinstance(value, Request):
            found[name] = _encoded(value)
        elif isinstance(value, frozenset):
            found[name] = sorted(value)
        elif name == "types":
            found[name] = {key: str(type) for key, type in value.items()}
    return found


def _decoded(kind, found):
    if "request" in found:
        found["request"] = _decoded(Request, found["request"])
    if "wanted" in found:
        found["wanted"] = frozenset(found["wanted"])
    if "types" in found:
        found["types"] = {key: parse_type(text) for key, text in found["types"].items()}
    if "dropped" in found:
        found["dropped"] = tuple(found["dropped"])
    return kind(**found)


class WireSession:
    """A session behind a wire: nothing passes but copies of messages, arrays and program files."""

    def __init__(self, session, folder):
        self._session, self._folder = session, folder

    def submit(self, program, needed):
        path = self._folder / "program.zip"
        save_program(program, path)
        return sent(self._session.submit(load_program(path), sent(needed)))

    def prepare(self, request):
        return sent(self._session.prepare(sent(request)))

    def step(self, batches, activation_bytes=None):
        answer = self._session.step(list(map(sent, batches)), activation_bytes)
        return sent(answer) if isinstance(answer, ProgramNeeded) else list(map(sent, answer))

    def capacity_error(self, program):
        return self._session.capacity_error(program)

    def get(self, name):
        return sent(self._session.get(name))

    def put(self, name, content):
        self._session.put(name, sent(content))

    def save(self, prefix):
        self._session.save(prefix)

    def restore(self, prefix):
        self._session.restore(prefix)

    def random_state(self):
        return self._session.random_state()

    def restore_random_state(self, state):
        self._session.restore_random_state(state)


for _name in ("price", "specs", "version", "global_step", "activation_limit"):
    setattr(WireSession, _name, property(lambda self, name=_name: getattr(self._session, name)))
for _name in ("held_bytes", "peak_bytes"):
    setattr(WireSession, _name, property(lambda self, name=_name: getattr(self._session, name)))


@pytest.fixture(params=["here", "wire"])
def connect(request, tmp_path):
    """Makes sessions on a store, in this process or behind a wire."""

    def made(store, **given):
        session = Session(store, CpuBackend(), checkpoints=BundleFormat(), **given)
        return WireSession(session, tmp_path) if request.param == "wire" else session

    return made


def store(value=WEIGHT):
    return store_of([Variable("w", packing.TensorType("float32", (4, 4)), True)], {"w": value})


@pytest.mark.parametrize("kind", [Session, WireSession])
def test_sessions_have_all_that_the_protocol_asks_for(kind):
    for name, member in vars(SessionProtocol).items():
        if not name.startswith("_"):
            found = inspect.getattr_static(kind, name)
            if callable(member):
                given = [list(inspect.signature(f).parameters) for f in (member, found)]
                assert given[0] == given[1], name
            else:
                assert isinstance(found, property), name


def test_batches_train_alike_on_both_sides(connect):
    batches = [batch(rows, seed) for seed, rows in enumerate((8, 3, 16, 8, 40))]
    client = SessionClient(connect(store()), Compiler())
    losses = [client.run({"x": x})["loss"] for x in batches]
    wanted, state = wanted_losses(batches)
    np.testing.assert_allclose(losses, wanted, rtol=1e-5)
    np.testing.assert_allclose(client.session.get("w"), state["w"], rtol=1e-5)
    assert client.source.compiled == [8] and client.source.enlarged == [{"R": 16}, {"R": 40}]


def test_batches_whose_padding_is_removed_train_alike_on_both_sides(connect):
    here = packing.session_of(packing.Compiler(True))
    variables = store_of(here.session.specs.values(), variables_of(here))
    client = SessionClient(connect(variables), packing.Compiler(True))
    for given in [*packing.BATCHES, packing.BATCHES[0]]:
        assert client.run(given)["loss"] == here.run(given)["loss"]


def test_a_larger_variant_is_an_answer_and_leaves_the_session_as_it_is(connect):
    session, source = connect(store()), Compiler()
    first = session.step([Batch({"x": batch(8)})])
    assert first == ProgramNeeded(Request({"x": packing.TensorType("float32", (8, 4))}))
    program = source.compile(first.request)
    accepted = session.submit(program, first)
    (result,) = session.step([Batch({"x": batch(8)})])
    assert isinstance(result, StepResult)
    second = session.step([Batch({"x": batch(16)})])
    assert (second.program, second.sizes) == (accepted.program, {"R": 16})
    version = session.version
    with pytest.raises(DataError, match="must serve the request"):
        session.submit(program, second)
    assert session.version == version
    (result,) = session.step([Batch({"x": batch(8)})])
    assert result.global_step == 0
    assert session.submit(source.enlarge(program, second.sizes), second) == Accepted(0)
    assert isinstance(session.prepare(second.request), Prepared)


def test_a_program_that_does_not_fit_is_refused_and_the_session_goes_on(connect, monkeypatch):
    client = SessionClient(connect(store()), Compiler())
    client.run({"x": batch(8)})
    with monkeypatch.context() as patch:
        patch.setattr("cerebras_tf.runtime.capacity.available_bytes", lambda: 10)
        with pytest.raises(CapacityError, match="this model needs"):
            client.run({"x": batch(4000)})
    client.run({"x": batch(8)})


def test_variables_and_counters_are_saved_and_restored(connect, tmp_path):
    prefix = str(tmp_path / "saved" / "model.ckpt-0")
    first = SessionClient(connect(store()), Compiler())
    first.run({"x": batch(8)})
    first.session.save(prefix)
    second = SessionClient(connect(store(np.zeros_like(WEIGHT))), Compiler())
    second.session.restore(prefix)
    assert second.session.random_state() == {RANDOM_STEP_KEY: 1}
    for client in (first, second):
        client.run({"x": batch(5)})
    np.testing.assert_array_equal(second.session.get("w"), first.session.get("w"))
    with pytest.raises(CheckpointError, match="shape"):
        second.session.put("w", np.zeros(3, np.float32))
    second.session.put("w", WEIGHT)
    np.testing.assert_array_equal(second.session.get("w"), WEIGHT)


def test_a_session_without_a_checkpoint_format_refuses_to_save():
    with pytest.raises(ConfigError, match="checkpoint format"):
        Session(store(), CpuBackend()).save("x")
