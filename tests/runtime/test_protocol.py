"""The same steps on a session in this process and on one at an address."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from cerebras_tf.address.remote import RemoteSession
from cerebras_tf.errors import CapacityError, CheckpointError, ConfigError, DataError
from cerebras_tf.ir import Variable
from cerebras_tf.memoryx.store import reading, write
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
from tests.address.loopback import loopback
from tests.machines import store_of, variables_of
from tests.runtime import test_packing as packing
from tests.runtime.test_session import WEIGHT, Compiler, batch, wanted_losses


@pytest.fixture(params=["here", "address"])
def connect(request):
    """Makes sessions on a store, in this process or at an address."""

    def made(store):
        if request.param == "here":
            return Session(store, CpuBackend(), checkpoints=BundleFormat())
        wafer, _ = loopback()
        there = wafer.store(store.specs.values())
        for name in store.specs:
            with reading(store, name) as array:
                write(there, name, array)
        return wafer.session(there, True, checkpoints=BundleFormat())

    return made


def store(value=WEIGHT):
    return store_of([Variable("w", packing.TensorType("float32", (4, 4)), True)], {"w": value})


@pytest.mark.parametrize("kind", [Session, RemoteSession])
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
