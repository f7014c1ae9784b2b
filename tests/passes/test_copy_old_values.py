"""Old values that are wanted after the step are copied, others are not."""

from __future__ import annotations

from cerebras_tf.ir import verify
from cerebras_tf.ops import infer
from cerebras_tf.passes.copy_old_values import copy_old_values
from tests.graphs import canonical, ops_of
from tests.steps import StepBuilder


def apply(step):
    copy_old_values(step)
    verify(step.graph, infer)
    once = canonical(step.graph)
    copy_old_values(step)
    assert canonical(step.graph) == once
    return ops_of(step.graph)


def test_a_result_that_is_an_old_value_is_copied():
    s = StepBuilder()
    w = s.variable("w", 4)
    s.step.updates["w"] = s.b.op("neg", w)
    step = s.done(old=w)
    assert apply(step) == ["neg", "identity"]
    assert step.results["old"].node.inputs == [w]


def test_so_is_what_is_seen_through_a_reshape():
    s = StepBuilder()
    w = s.variable("w", 4)
    flat = s.b.op("reshape", w, shape=(2, 2))
    s.step.updates["w"] = s.b.op("neg", w)
    assert apply(s.done(old=flat)) == ["reshape", "neg", "identity"]


def test_variables_that_swap_are_both_copied():
    s = StepBuilder()
    a, b = s.variable("a", 4), s.variable("b", 4)
    s.step.updates = {"a": b, "b": a}
    assert apply(s.done()) == ["identity", "identity"]


def test_one_copy_serves_all_who_want_it():
    s = StepBuilder()
    a, b = s.variable("a", 4), s.variable("b", 4)
    s.step.updates = {"a": s.b.op("neg", a), "b": a}
    assert apply(s.done(old=a, again=a)) == ["neg", "identity"]
    assert b.node is None


def test_a_variable_that_nobody_changes_is_not_copied():
    s = StepBuilder()
    w, v = s.variable("w", 4), s.variable("v", 4)
    s.step.updates = {"w": w, "v": s.b.op("neg", v)}
    assert apply(s.done(w=w)) == ["neg"]


def test_new_values_are_not_copied():
    s = StepBuilder()
    w = s.variable("w", 4)
    s.step.updates["w"] = s.b.op("neg", w)
    assert apply(s.done(new=s.step.updates["w"])) == ["neg"]
