"""Checks how fetches of a running session are turned into values of the wafer."""

from __future__ import annotations

from collections import OrderedDict, namedtuple

import pytest

pytest.importorskip("tensorflow")

import numpy as np
import tensorflow as tf

from cerebras_tf.estimator.session import _fill, map_fetches
from tests.estimator.regression import build, dataset

pytestmark = pytest.mark.tf
v1 = tf.compat.v1
Pair = namedtuple("Pair", ["left", "right"])
STRUCTURE = {"a": [1, (2, None)], "b": Pair(3, OrderedDict(c=4))}


def test_fetch_structures_keep_their_shape():
    changed = map_fetches(STRUCTURE, lambda leaf: leaf * 10)
    assert changed == {"a": [10, (20, None)], "b": Pair(30, OrderedDict(c=40))}
    assert isinstance(changed["b"], Pair)
    assert isinstance(changed["b"].right, OrderedDict)


def test_results_are_filled_in_where_a_leaf_has_a_value_of_its_own():
    results = {"a": ["x", ("y", None)], "b": Pair("z", {"c": "w"})}
    filled = _fill(STRUCTURE, results, lambda leaf: {1: "one", 4: "four"}.get(leaf))
    assert filled == {"a": ["one", ("y", None)], "b": Pair("z", {"c": "four"})}


class FetchAll(tf.estimator.SessionRunHook):
    """Fetches one structure of tensors, names, operations and variables of every kind."""

    def before_run(self, run_context):
        graph = run_context.session.graph
        hidden = graph.get_tensor_by_name("hidden:0")
        kernel = next(v for v in v1.global_variables() if v.op.name == "layer/kernel")
        return tf.estimator.SessionRunArgs(
            {
                "nested": Pair(hidden, ["cost:0", hidden]),
                "op": graph.get_operation_by_name("hidden"),
                "step": v1.train.get_global_step(),
                "variable": kernel,
            }
        )

    def after_run(self, run_context, run_values):
        self.results = run_values.results


def test_fetches_of_every_kind_give_what_the_host_gives(tmp_path):
    hooks = [FetchAll(), FetchAll()]
    for use_cs, hook in zip((False, True), hooks):
        build(tmp_path / str(use_cs)).train(dataset, hooks=[hook], max_steps=1, use_cs=use_cs)
    host, wafer = (hook.results for hook in hooks)
    assert wafer["op"] is None
    assert isinstance(wafer["nested"], Pair)
    np.testing.assert_allclose(wafer["nested"].left, host["nested"].left, rtol=1e-5)
    np.testing.assert_allclose(wafer["nested"].right[0], host["nested"].right[0], rtol=1e-5)
    assert wafer["variable"].shape == (3, 2)


def test_a_hooks_own_call_of_the_session_reads_values_without_making_a_step(tmp_path):
    class Reader(tf.estimator.SessionRunHook):
        steps = []

        def after_run(self, run_context, run_values):
            session = run_context.session
            self.steps.append(int(session.run(v1.train.get_global_step())))

    build(tmp_path).train(dataset, hooks=[Reader()], max_steps=3)
    assert Reader.steps == [1, 2, 3]
