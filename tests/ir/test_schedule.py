"""Steps of a schedule describe themselves: files, text and the action they ask for."""

from __future__ import annotations

import json

import pytest

from cerebras_tf.errors import GraphError
from cerebras_tf.ir.schedule import (
    ENTRY_KINDS,
    Free,
    OnWafer,
    Run,
    Share,
    StreamIn,
    StreamOut,
    decode_entry,
)

SAMPLES = {
    "stream_in": StreamIn(3, (0, 4)),
    "run": Run(-1, "backward", 2, (5, 0)),
    "stream_out": StreamOut(1, (("w", 4), ("w/Momentum", 7))),
    "free": Free(()),
    "on_wafer": OnWafer(1, 3),
    "share": Share(0, (2, 7), ("scale",)),
}


def test_every_kind_has_a_sample_of_its_class():
    assert {kind: type(step) for kind, step in SAMPLES.items()} == ENTRY_KINDS


@pytest.mark.parametrize("kind", SAMPLES)
def test_steps_come_back_from_json(kind):
    step = SAMPLES[kind]
    found = decode_entry(json.loads(json.dumps(step.encode())))
    assert (found, type(found)) == (step, type(step))
    hash(found)  # lists have become tuples, at every depth


@pytest.mark.parametrize("kind", SAMPLES)
def test_the_first_entry_of_a_file_is_the_kind(kind):
    assert SAMPLES[kind].encode()[0] == kind


def test_steps_print_their_fields():
    assert str(SAMPLES["run"]) == "run(layer=-1, direction=backward, body=2, slots=(5, 0))"


@pytest.mark.parametrize("kind", SAMPLES)
@pytest.mark.parametrize("change", [lambda given: given[:-1], lambda given: [*given, 0]])
def test_another_number_of_fields_is_refused(kind, change):
    given = change(SAMPLES[kind].encode())
    count = len(SAMPLES[kind].encode()) - 1
    with pytest.raises(
        GraphError, match=f"a step {kind} has {count} fields. Received: {len(given) - 1}"
    ):
        decode_entry(given)


def test_an_unknown_kind_is_refused_by_name():
    with pytest.raises(GraphError, match="unknown step. Received: teleport"):
        decode_entry(["teleport", 1])


@pytest.mark.parametrize("kind", SAMPLES)
def test_a_step_asks_a_machine_for_one_action_with_itself(kind):
    asked = []

    class Machine:
        def __getattr__(self, name):
            return lambda step: asked.append((name, step))

    SAMPLES[kind].apply(Machine())
    wanted = "compute" if kind == "run" else kind
    assert asked == [(wanted, SAMPLES[kind])]
