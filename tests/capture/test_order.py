"""Checks the order in which operations are visited."""

from __future__ import annotations

from cerebras_tf.capture.order import execution_order

NEEDS = {"d": ["b", "c"], "c": ["a"], "b": ["a"], "a": [], "unused": ["a"]}
BUILT = {name: place for place, name in enumerate(["a", "c", "b", "d", "unused"])}


def order(roots, needs=NEEDS):
    return execution_order(roots, lambda op: needs[op], BUILT)


def test_operations_come_after_what_they_need_and_otherwise_as_built():
    assert order(["d"]) == ["a", "c", "b", "d"]


def test_only_what_the_roots_need_comes_and_once():
    assert order(["b"]) == ["a", "b"]
    assert order(["b", "d", "b"]) == ["a", "c", "b", "d"]


def test_dependencies_win_over_the_order_of_building():
    assert order(["a"], {"a": ["d"], "d": []}) == ["d", "a"]


def test_loops_and_operations_after_them_are_omitted():
    assert order(["d"], {"d": ["b"], "b": ["c", "a"], "c": ["b"], "a": []}) == ["a"]
