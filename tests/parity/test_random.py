"""Random ops against TensorFlow: the numbers of a seeded op in the first steps of a session."""

from __future__ import annotations

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from cerebras_tf.capture.capture import RANDOM_STEP, Capture
from cerebras_tf.ir import TensorType
from tests.graphs import run_plain
from tests.tolerances import TOLERANCES

pytestmark = pytest.mark.tf

STEPS = 3
SHAPES = [(5,), (7, 11, 13), (64, 33)]


def run_both(build, feeds=()):
    """(ours, TensorFlow's) values of a tensor in the first steps of a session."""
    with tf.Graph().as_default():
        places = [tf.compat.v1.placeholder(x.dtype, x.shape) for x in feeds]
        tensor = build(places)
        with tf.compat.v1.Session() as session:
            theirs = [session.run(tensor, dict(zip(places, feeds))) for _ in range(STEPS)]
        types = {x: TensorType(x.dtype.name, tuple(x.shape.as_list())) for x in places}
        graph = Capture({}, types).run({"y": tensor}).graph
    given = {place.name: array for place, array in zip(places, feeds)}
    ours = []
    for step in range(STEPS):
        given[RANDOM_STEP] = np.array(step, np.int64)
        ours += run_plain(graph, [given[value.name] for value in graph.inputs])
    return ours, theirs


@pytest.mark.parametrize("shape", SHAPES)
def test_seeded_uniform_numbers_are_tensorflows(shape):
    ours, theirs = run_both(lambda x: tf.compat.v1.random_uniform(shape, seed=7))
    for mine, expected in zip(ours, theirs):
        np.testing.assert_array_equal(mine, expected)
    assert not np.array_equal(ours[0], ours[1])


@pytest.mark.parametrize("shape", SHAPES)
def test_seeded_uniform_integers_are_tensorflows(shape):
    def build(x):
        return tf.compat.v1.random_uniform(shape, 3, 17, tf.int32, seed=7)

    for mine, expected in zip(*run_both(build)):
        np.testing.assert_array_equal(mine, expected)


@pytest.mark.parametrize("shape", SHAPES)
def test_seeded_normal_numbers_are_tensorflows(shape):
    relative, absolute = TOLERANCES["reduction"]
    for mine, expected in zip(*run_both(lambda x: tf.compat.v1.random_normal(shape, seed=7))):
        np.testing.assert_allclose(mine, expected, rtol=relative, atol=4 * absolute)


def test_seeded_dropout_drops_what_tensorflow_drops():
    x = np.random.default_rng(0).standard_normal((32, 48)).astype(np.float32)
    ours, theirs = run_both(lambda places: tf.nn.dropout(places[0], rate=0.3, seed=11), [x])
    for mine, expected in zip(ours, theirs):
        np.testing.assert_allclose(mine, expected, rtol=2e-6, atol=1e-7)


def test_truncated_normal_numbers_stay_within_two_deviations():
    ours, _ = run_both(lambda x: tf.compat.v1.truncated_normal((200, 100), seed=7))
    numbers = np.stack(ours)
    assert np.abs(numbers).max() <= 2.0
    # Standard deviation of a normal distribution cut at 2: 0.8796.
    assert abs(numbers.std() - 0.8796) < 0.01
    assert abs(numbers.mean()) < 0.01


def test_ops_without_seeds_draw_different_numbers():
    def build(x):
        return tf.stack([tf.compat.v1.random_uniform([50]), tf.compat.v1.random_uniform([50])])

    ours, _ = run_both(build)
    assert not np.array_equal(ours[0][0], ours[0][1])
    assert not np.array_equal(ours[0], ours[1])


@pytest.mark.parametrize("rows", [2, 5, 30])
def test_seeded_shuffles_are_tensorflows(rows):
    def build(x):
        order = tf.random.shuffle(tf.range(rows), seed=7)
        return tf.concat(
            [order, tf.random.shuffle(tf.reshape(tf.range(2 * rows), [-1, 2]), 5)[:, 0]], 0
        )

    for mine, expected in zip(*run_both(build)):
        np.testing.assert_array_equal(mine, expected)


def test_stateless_numbers_of_a_shape_and_a_seed_from_the_batch_are_tensorflows():
    def build(x):
        shape, seed = tf.shape(x[0]), x[1]
        numbers = tf.random.stateless_uniform(shape, seed, maxval=9, dtype=tf.int32)
        kinds = tf.random.stateless_normal, tf.random.stateless_truncated_normal
        drawn = [tf.random.stateless_uniform(shape, [3, 4]), tf.cast(numbers, tf.float32)]
        return tf.stack([*drawn, *(kind(shape, seed) for kind in kinds)])

    feeds = [np.zeros((3, 7), np.float32), np.array([5, -6], np.int64)]
    ours, theirs = run_both(build, feeds)
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-5, atol=4e-6)
