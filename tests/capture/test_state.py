"""Variables during a capture: what reads and assignments leave of a step."""

from __future__ import annotations

import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

from cerebras_tf.capture.state import VariableState
from cerebras_tf.ir import Graph, StepGraph, TensorType, Variable
from cerebras_tf.ops import Builder

pytestmark = pytest.mark.tf


@pytest.fixture
def case():
    """(state, builder, handle of "a", handle of "b")"""
    with tf.Graph().as_default():
        handles = [tf.Variable([1.0, 2.0], name=name).handle for name in "ab"]
    step = StepGraph(Graph("step"))
    state = VariableState(step)
    for handle, name in zip(handles, "ab"):
        state.bind_handle(handle, Variable(name, TensorType("float32", (2,)), True))
    return state, Builder(step.graph), *handles


def test_a_variable_becomes_an_input_at_its_first_use(case):
    state, _, a, b = case
    assert state.step.graph.inputs == []
    first = state.read(b)
    assert state.read(b) is first
    assert [value.name for value in state.step.graph.inputs] == ["b"]
    assert set(state.step.specs) == {"b"}
    assert not state.updates()


def test_reads_after_an_assignment_see_it_and_the_initial_value_stays(case):
    state, builder, a, _ = case
    start = state.read(a)
    new = builder.op("neg", start)
    state.assign(a, new)
    assert state.read(a) is new
    assert state.initial(a) is start


def test_the_last_of_several_assignments_counts(case):
    state, builder, a, b = case
    state.assign(b, builder.op("neg", state.read(b)))
    state.assign(a, builder.op("neg", state.read(b)))
    last = builder.op("exp", state.read(b))
    state.assign(b, last)
    assert list(state.updates()) == ["b", "a"]
    assert state.updates()["b"] is last


def test_a_variable_that_is_assigned_but_never_read_is_an_input_too(case):
    state, builder, a, _ = case
    state.assign(a, builder.constant([3.0, 4.0], "float32"))
    assert set(state.step.variables) == {"a"}


def test_a_state_around_lends_handles_not_values(case):
    state, builder, a, _ = case
    state.assign(a, builder.op("neg", state.read(a)))
    inner = VariableState(StepGraph(Graph("branch")), state)
    assert inner.knows(a)
    assert inner.read(a) in inner.step.graph.inputs
    assert not inner.updates()


def test_handles_of_other_variables_are_not_known(case):
    state, *_ = case
    with tf.Graph().as_default():
        assert not state.knows(tf.Variable(1.0).handle)
