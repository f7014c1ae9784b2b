"""Entries of a schedule: files, text and the executor's method that runs them."""

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
from tests.messages import raises

SAMPLES = {
    "stream_in": StreamIn(3, (0, 4)),
    "run": Run(-1, "backward", 2, (5, 0)),
    "stream_out": StreamOut(1, (("w", 4), ("w/Momentum", 7))),
    "free": Free(()),
    "on_wafer": OnWafer(1, 3),
    "share": Share(0, (2, 7), ("scale",)),
}


def test_every_kind_has_a_sample_of_its_class():
    assert {kind: type(entry) for kind, entry in SAMPLES.items()} == ENTRY_KINDS


@pytest.mark.parametrize("kind", SAMPLES)
def test_entries_come_back_from_json(kind):
    entry = SAMPLES[kind]
    found = decode_entry(json.loads(json.dumps(entry.encode())))
    assert (found, type(found)) == (entry, type(entry))
    hash(found)  # lists have become tuples, at every depth


def test_entries_print_their_fields():
    assert str(SAMPLES["run"]) == "run(layer=-1, direction=backward, body=2, slots=(5, 0))"


@pytest.mark.parametrize(
    ("given", "facts"),
    [
        (["run", 0, "forward"], ("run", 4, 2)),
        (["free", [], 0], ("free", 1, 2)),
        (["teleport", 1], ("teleport",)),
    ],
)
def test_entries_of_other_kinds_are_refused(given, facts):
    with raises(GraphError, *facts):
        decode_entry(given)


@pytest.mark.parametrize("kind", SAMPLES)
def test_an_entry_calls_one_method_with_itself(kind):
    calls = []

    class Executor:
        def __getattr__(self, name):
            return lambda entry: calls.append((name, entry))

    SAMPLES[kind].apply(Executor())
    assert calls == [("compute" if kind == "run" else kind, SAMPLES[kind])]
