"""Seeds of random ops: given ones are used, others are drawn once per graph.

The numbers that seeds give are compared with TensorFlow's in tests/parity/test_random.py.
"""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

from cerebras_tf.capture.capture import RANDOM_STEP, Capture
from cerebras_tf.ops import draws
from tests.graphs import run_plain

pytestmark = pytest.mark.tf
v1 = tf.compat.v1


def capture(**wanted):
    return Capture({}, {}).run(wanted).graph


def seeds(graph):
    """(seed, seed2) of every random node, in order."""
    return [tuple(node.inputs[-1].constant.tolist()) for node in graph.nodes if draws(node)]


def drawn(graph, step=0):
    assert [value.name for value in graph.inputs] == [RANDOM_STEP]
    return run_plain(graph, [np.array(step, np.int64)])


@pytest.mark.parametrize("of_graph", [5, None])
def test_seeds_of_op_and_graph_are_used(of_graph):
    with tf.Graph().as_default():
        if of_graph:
            v1.set_random_seed(of_graph)
        assert seeds(capture(y=v1.random_normal([3], seed=7))) == [
            (of_graph or v1.get_seed(7)[0], 7)
        ]


def test_two_captures_of_one_graph_draw_the_same_numbers():
    with tf.Graph().as_default():
        x, y = v1.random_normal([50]), v1.random_uniform([50])
        first, second = capture(x=x, y=y), capture(x=x, y=y)
        (alone,) = drawn(capture(y=y))
    for a, b in zip(drawn(first), drawn(second)):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(alone, drawn(first)[1])


def test_two_graphs_draw_different_numbers():
    found = []
    for _ in range(2):
        with tf.Graph().as_default():
            found += drawn(capture(y=v1.random_uniform([50])))
    assert not np.array_equal(*found)


def test_ops_of_one_graph_have_seeds_of_their_own():
    with tf.Graph().as_default():
        found = seeds(capture(**{str(i): v1.random_uniform([2]) for i in range(20)}))
    assert len(set(found)) == 20
    assert all(0 <= seed < 2**63 for pair in found for seed in pair)


def test_a_function_called_twice_draws_twice():
    @tf.function
    def noise():
        return tf.random.uniform([50])

    with tf.Graph().as_default():
        graph = capture(x=noise(), y=noise())
    assert not np.array_equal(*drawn(graph))


def test_a_random_op_in_a_conditional_draws_the_same_numbers_in_two_captures():
    with tf.Graph().as_default():
        chosen = v1.random_uniform([]) < 2.0
        y = tf.cond(chosen, lambda: tf.random.uniform([50]), lambda: tf.zeros([50]))
        first, second = (drawn(capture(y=y)) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert np.any(first[0] > 0)


def test_every_step_draws_other_numbers():
    with tf.Graph().as_default():
        graph = capture(y=v1.random_uniform([50]))
    assert not np.array_equal(drawn(graph, 0)[0], drawn(graph, 1)[0])
