"""The session that copies only the operations it has run."""

from __future__ import annotations

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
v1 = tf.compat.v1

from tensorflow.python.training import session_manager

from cerebras_tf.tf_session.lean_session import LeanSession, lean_sessions, make_lean

pytestmark = pytest.mark.tf


def test_a_lean_session_copies_only_what_it_ran(graph):
    wanted = tf.constant(1.0, name="wanted")
    tf.constant(2.0, name="other")
    with LeanSession(graph=graph) as session:
        assert session.graph is graph
        assert session.run(wanted) == 1.0
        assert [op.name for op in session._copy.get_operations()] == ["wanted"]


def test_a_lean_session_copies_only_functions_that_it_ran(graph):
    inner = tf.function(lambda x: 2.0 * x, autograph=False)
    outer = tf.function(lambda x: inner(x) + 1.0, autograph=False)
    wanted = outer(tf.constant(3.0))
    tf.cond(tf.greater(wanted, 0.0), lambda: wanted - 1.0, lambda: wanted)
    with LeanSession(graph=graph) as session:
        assert session.run(wanted) == 7.0
        copied = [f.signature.name for f in session._copy.as_graph_def().library.function]
    assert len(copied) == 2 and not any("cond" in name for name in copied)


def test_a_lean_session_keeps_state_between_runs(graph):
    variable = v1.get_variable("v", [2], initializer=v1.zeros_initializer(), use_resource=True)
    add = variable.assign_add([1.0, 2.0])
    batches = v1.data.make_initializable_iterator(tf.data.Dataset.range(9).map(lambda x: 3 * x))
    following = batches.get_next()
    draw = tf.random.normal([2], seed=3)
    with LeanSession(graph=graph) as session:
        session.run([variable.initializer, batches.initializer])
        session.run(add)
        assert session.run([following, following])[0] == 0
        assert session.run("v/Read/ReadVariableOp:0").tolist() == [1, 2]
        assert session.run(following) == 3
        first, second = session.run(draw), session.run(draw)
        assert not np.array_equal(first, second)
        with session.separate() as other:
            np.testing.assert_array_equal(other.run(draw), first)


def test_a_lean_session_runs_functions_loops_feeds_and_what_was_added_later(graph):
    x = v1.placeholder(tf.float32, [None], name="x")
    square = tf.function(lambda a: a * a + 1.0)(x)
    v1.disable_control_flow_v2()
    try:
        count = tf.while_loop(lambda i: i < 7, lambda i: i + 1, [tf.constant(0)])
    finally:
        v1.enable_control_flow_v2()
    with tf.control_dependencies([tf.debugging.check_numerics(x, "x")]):
        after = tf.identity(count)
    with LeanSession(graph=graph) as session:
        assert session.run(count) == [7]
        assert session.run([square, after], {x: [2.0]})[0] == 5
        later = square + 1.0
        assert session.run(later, {"x:0": [3.0]}) == 11
        assert session.run(later, {square: [3.0]}) == 4
        assert session.make_callable(later, [x])([1.0]) == 3
        handle = session.partial_run_setup([later], [x])
        assert session.partial_run(handle, later, {x: [1.0]}) == 3


def test_a_lean_session_names_the_operation_that_failed(graph):
    x = v1.placeholder(tf.float32, [], name="x")
    checked = tf.debugging.check_numerics(x, "found", name="checked")
    with (
        LeanSession(graph=graph) as session,
        pytest.raises(tf.errors.InvalidArgumentError, match="test_lean_session") as caught,
    ):
        session.run(checked, {x: np.nan})
    assert caught.value.op is checked.op


def test_estimators_sessions_are_lean_where_asked(graph):
    make_lean(graph)
    original = session_manager.session
    with lean_sessions():
        make = session_manager.session.Session
        assert isinstance(make("", graph=graph), LeanSession)
        assert not isinstance(make("", graph=tf.Graph()), LeanSession)
    assert session_manager.session is original
