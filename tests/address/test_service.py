"""What a client with a token may not do, whatever it sends."""

from __future__ import annotations

import random
import zipfile
from dataclasses import replace
from io import BytesIO

import numpy as np
import pytest

from cerebras_tf.address import messages as m
from cerebras_tf.address.remote import RemoteWafer
from cerebras_tf.address.service import Service, ServiceSettings
from cerebras_tf.errors import CapacityError, CerebrasError, CheckpointError, DataError, GraphError
from cerebras_tf.ir import TensorType, Variable
from cerebras_tf.ir.program_file import members_digest, program_bytes
from cerebras_tf.runtime.client import SessionClient
from cerebras_tf.runtime.protocol import Batch, ProgramNeeded, Request
from tests.address.loopback import Loopback, loopback
from tests.runtime.test_session import WEIGHT, Compiler, batch

SPEC = Variable("w", TensorType("float32", (4, 4)), True)
NEEDED = ProgramNeeded(Request({"x": TensorType("float32", (8, 4))}))
PROGRAM = Compiler().compile(NEEDED.request)


def opened(spec=SPEC, service=None):
    """A link with a store and a session on it: (link, store, session)."""
    link = Loopback(service)
    store = link.call(m.OpenStore((spec,))).number
    return link, store, link.call(m.OpenSession(store, True)).number


def submit(link, session, content=None, needed=NEEDED):
    digest, whole = program_bytes(PROGRAM)
    content = whole if content is None else content
    return link.call(m.Submit(session, needed, digest, np.frombuffer(content, np.uint8)))


def test_a_program_for_variables_of_other_types_is_refused():
    small = replace(SPEC, type=TensorType("float32", (2, 2)))
    for spec in (small, replace(SPEC, name="v")):
        link, _, session = opened(spec)
        with pytest.raises(DataError, match="w as in the store"):
            submit(link, session)


def test_a_value_within_a_step_keeps_its_type():
    link, store, _ = opened()
    large, small = (Variable("sum", TensorType("float32", (n,))) for n in (8, 2))
    link.call(m.Reserve(store, (large,)))
    with pytest.raises(DataError, match="sum as before"):
        link.call(m.Reserve(store, (small,)))
    with pytest.raises(DataError, match="names that are no variables"):
        link.call(m.Reserve(store, (SPEC,)))


def test_a_program_must_be_what_its_digest_says_and_is_kept():
    link, _, session = opened()
    content = program_bytes(PROGRAM)[1]
    with pytest.raises(GraphError):
        submit(link, session, content[:-9])
    packed = BytesIO()
    with zipfile.ZipFile(BytesIO(content)) as old, zipfile.ZipFile(packed, "w", 8) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    with pytest.raises(GraphError, match="complete saved program"):
        submit(link, session, packed.getvalue())
    digest = program_bytes(PROGRAM)[0]
    assert link.call(m.Submit(session, NEEDED, digest)) == m.Unknown()
    submit(link, session)
    with pytest.raises(DataError, match="with digest"):
        link.call(m.Submit(session, NEEDED, "0" * 64, np.frombuffer(content, np.uint8)))
    link, _, session = opened(service=link.service)
    link.call(m.Submit(session, NEEDED, digest))  # of another run
    Service.end(link.service)
    assert link.service.progress()["programs"] == 1


def test_costs_of_a_client_do_not_count():
    lying = replace(
        PROGRAM,
        bodies=[
            [replace(i, cost=replace(i.cost, scratch_bytes=10**15)) for i in body]
            for body in PROGRAM.bodies
        ],
    )
    wafer, _ = loopback()
    store = wafer.store([SPEC])
    wafer.session(store, True).submit(lying, NEEDED)  # else it would not fit


def test_features_do_not_replace_what_the_session_computes():
    link, store, session = opened()
    link.call(m.Put(store, "w", WEIGHT))
    submit(link, session)
    given = {"x": batch(8), "": np.zeros(3), "random_step": np.zeros(1)}
    link.call(m.Step(session, (Batch(given),)))


def test_variables_have_their_shape_and_dtype():
    link, store, _ = opened()
    for content in (WEIGHT[:2], WEIGHT.astype(np.float64), WEIGHT.view(np.int32)):
        with pytest.raises(DataError, match="w as float32"):
            link.call(m.Put(store, "w", content))
    with pytest.raises(CheckpointError, match="must have a value"):
        link.call(m.Get(store, "w"))
    for request in (m.Get(store, "../w"), m.FindNotFinite(store, ("v",))):
        with pytest.raises(DataError, match="names of variables"):
            link.call(request)


def test_memory_and_numbers_of_objects_are_bounded():
    service = Service(ServiceSettings(memory_bytes=500, max_programs=1))
    large = Variable("v", TensorType("float32", (1 << 40,)))
    for link in (Loopback(service), Loopback()):
        with pytest.raises(CapacityError, match="variables must fit"):
            link.call(m.OpenStore((large,)))
    link, store, session = opened(service=service)
    with pytest.raises(CapacityError, match="wafer's server allows.* computer of the wafer"):
        submit(link, session)
    with pytest.raises(DataError, match="at most 256 sessions"):
        for _ in range(300):
            link.call(m.OpenSession(store, True))
    with pytest.raises(DataError, match="at most 64 stores"):
        for _ in range(70):
            link.call(m.OpenStore((SPEC,)))
    link.call(m.CloseSession(session))
    with pytest.raises(DataError, match="a session that is open"):
        link.call(m.AskSession(session))
    session = link.call(m.OpenSession(store, True)).number
    link.call(m.CloseStore(store))
    with pytest.raises(DataError, match="a session that is open"):
        link.call(m.AskSession(session))


def test_an_evaluation_borrows_from_the_store_of_the_training():
    wafer, _ = loopback()
    training = wafer.store([SPEC])
    session = wafer.session(training, True)
    session.put("w", WEIGHT)
    evaluation = wafer.store([SPEC], training)
    assert evaluation.borrow() == {"w"} and evaluation.has_value("w")
    np.testing.assert_array_equal(wafer.session(evaluation, False).get("w"), WEIGHT)
    evaluation.close()
    np.testing.assert_array_equal(session.get("w"), WEIGHT)


def test_variables_are_stored_in_files_of_the_server(tmp_path):
    service = Service(ServiceSettings(memoryx_dir=str(tmp_path), memoryx_bytes=1 << 20))
    results = []
    for link in (Loopback(), Loopback(service)):
        wafer = RemoteWafer(link)
        session = wafer.session(wafer.store([SPEC]), True, loss="loss")
        session.put("w", WEIGHT)
        client = SessionClient(session, Compiler())
        results.append([client.run({"x": batch(8, n)})["loss"] for n in range(3)])
        results[-1].append(session.get("w"))
    assert [loss for _, loss in service.progress()["losses"]] == results[1][:3]
    assert wafer.on_files and any(tmp_path.iterdir())
    service.end()
    assert not [path for path in tmp_path.rglob("*") if path.suffix == ".bin"]
    for here, there in zip(*results):
        np.testing.assert_array_equal(there, here)


def fuzz(count):
    """Changes programs at random; what is accepted runs a step."""
    rng = random.Random(1)
    _, content = program_bytes(PROGRAM)
    members = _members(content)
    text = members["program.json"]
    refused, service = 0, Service(ServiceSettings(memory_bytes=1 << 28, max_programs=2))
    for _ in range(count):
        changed = bytearray(text)
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(changed))
            kind = rng.random()
            if kind < 0.5:
                changed[at] = rng.choice(b'0123456789"[]{}:,-')
            elif kind < 0.75:
                del changed[at]
            else:
                changed[at:at] = rng.choice((b"9", b"-1", b"1e9", b"null", b'"x"', b"[]"))
        digest, file = _packed({**members, "program.json": bytes(changed)})
        link, store, session = opened(service=service)
        link.call(m.Put(store, "w", WEIGHT))
        try:
            link.call(m.Submit(session, NEEDED, digest, np.frombuffer(file, np.uint8)))
            link.call(m.Step(session, (Batch({"x": batch(8)}),)))
        except CerebrasError:
            refused += 1
        service.end()
    assert refused > count // 2


def _members(content):
    with zipfile.ZipFile(BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist() if name != "digest"}


def _packed(members):
    """A program's file with its digest."""
    file = BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
        digest = members_digest(archive)
        archive.writestr("digest", digest)
    return digest, file.getvalue()


def test_changed_programs_are_refused_or_run():
    fuzz(60)


@pytest.mark.slow
def test_many_changed_programs_are_refused_or_run():
    fuzz(10_000)
