"""Variables on the wafer have the values of TensorFlow's initializers."""

from __future__ import annotations

import pytest

pytest.importorskip("tensorflow")

import numpy as np
import tensorflow as tf

from cerebras_tf.ir import TensorType, Variable
from cerebras_tf.memoryx.store import MemoryStore
from cerebras_tf.tf_session import initial_values
from cerebras_tf.tf_session.initial_values import initialize
from tests.machines import content_of

pytestmark = pytest.mark.tf
v1 = tf.compat.v1


def make_variables():
    v1.set_random_seed(3)
    with v1.variable_scope("", use_resource=True):
        made = [
            v1.get_variable("normal", [3, 2], initializer=v1.random_normal_initializer()),
            v1.get_variable("uniform", [4], initializer=v1.random_uniform_initializer()),
            v1.get_variable("ones", [], tf.float64, initializer=v1.ones_initializer()),
        ]
    return {variable.op.name: variable for variable in made}


def store_for(variables):
    specs = [
        Variable(name, TensorType(v.dtype.base_dtype.name, tuple(v.shape.as_list())), True)
        for name, v in variables.items()
    ]
    return MemoryStore(specs)


@pytest.mark.parametrize("batch_bytes", [1, 1 << 28])
def test_variables_start_as_in_a_session(monkeypatch, batch_bytes):
    monkeypatch.setattr(initial_values, "BATCH_BYTES", batch_bytes)
    with tf.Graph().as_default():
        variables = make_variables()
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            expected = session.run({name: v.value() for name, v in variables.items()})
        store = store_for(variables)
        with v1.Session() as session:
            initialize(session, variables, store)
            assert not any(session.run([v.is_initialized() for v in variables.values()]))
    for name, content in expected.items():
        np.testing.assert_array_equal(content_of(store, name), content)
        assert content_of(store, name).dtype == content.dtype


def test_a_warm_start_with_another_vocabulary_moves_the_rows(tmp_path):
    old, new = tmp_path / "old.txt", tmp_path / "new.txt"
    old.write_text("a\nb\nc\n")
    new.write_text("c\nx\na\n")
    with tf.Graph().as_default(), v1.Session() as session:
        variables = make_variables()
        session.run(v1.global_variables_initializer())
        rows = session.run(variables["normal"])
        prefix = v1.train.Saver().save(session, str(tmp_path / "model"))
    vocabulary = tf.estimator.VocabInfo(str(new), 3, 0, str(old), 3, v1.zeros_initializer())
    with tf.Graph().as_default(), v1.Session() as session:
        variables = make_variables()
        v1.train.warm_start(prefix, "normal", {"normal": vocabulary})
        store = store_for(variables)
        initialize(session, variables, store)
    np.testing.assert_array_equal(content_of(store, "normal"), [rows[2], [0, 0], rows[0]])


def test_variables_that_depend_on_one_random_tensor_are_consistent(monkeypatch):
    monkeypatch.setattr(initial_values, "BATCH_BYTES", 1)
    with tf.Graph().as_default():
        v1.set_random_seed(3)
        with v1.variable_scope("", use_resource=True):
            first = v1.get_variable("first", [3, 2])
            second = v1.get_variable("second", [2, 2])
            v1.get_variable("first_copy", initializer=first.initial_value)
            v1.get_variable("row", initializer=first.initial_value[0] + second.initial_value[0])
            v1.get_variable("average", initializer=1.0 * second.initial_value)
        variables = {variable.op.name: variable for variable in v1.global_variables()}
        store = store_for(variables)
        with v1.Session() as session:
            initialize(session, variables, store)
    content = {name: content_of(store, name) for name in variables}
    np.testing.assert_array_equal(content["first_copy"], content["first"])
    np.testing.assert_array_equal(content["average"], content["second"])
    np.testing.assert_array_equal(content["row"], content["first"][0] + content["second"][0])


def test_constant_initial_values_are_not_computed_by_the_session():
    """A session keeps folded constants, so optimizer state would be in memory twice."""
    asked = []

    class Watched:
        def __init__(self, session):
            self._session = session

        def run(self, fetches):
            asked.extend(fetches)
            return self._session.run(fetches)

    with tf.Graph().as_default():
        with v1.variable_scope("", use_resource=True):
            for name, dtype, start in (
                ("zeros", tf.float32, v1.zeros_initializer()),
                ("ones", tf.bfloat16, v1.ones_initializer()),
                ("drawn", tf.float32, v1.random_normal_initializer(seed=1)),
            ):
                v1.get_variable(name, [40, 50], dtype, initializer=start)
        variables = {variable.op.name: variable for variable in v1.global_variables()}
        store = store_for(variables)
        with v1.Session() as session:
            initialize(Watched(session), variables, store)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            expected = session.run({name: v.value() for name, v in variables.items()})
    assert asked == ["drawn"]
    np.testing.assert_array_equal(content_of(store, "zeros"), expected["zeros"])
    np.testing.assert_array_equal(content_of(store, "drawn"), expected["drawn"])
    ones = content_of(store, "ones")
    np.testing.assert_array_equal(ones, expected["ones"].view(np.uint16))


def test_trainable_variables_that_start_equal_are_reported_once(monkeypatch):
    lines = []
    monkeypatch.setattr(v1.logging, "warning", lines.append)
    with tf.Graph().as_default(), v1.variable_scope("", use_resource=True):
        shared = tf.keras.initializers.TruncatedNormal()
        made = [
            v1.get_variable(name, shape, initializer=initializer, trainable=trainable)
            for name, shape, initializer, trainable in (
                ("query", [2, 3], shared, True),
                ("key", [2, 3], shared, True),
                ("average", [2, 3], shared, False),
                ("wide", [2, 4], shared, True),
                ("own", [2, 3], tf.keras.initializers.TruncatedNormal(), True),
                ("first", [2, 3], v1.random_normal_initializer(seed=1), True),
                ("second", [2, 3], v1.random_normal_initializer(seed=1), True),
                ("gain", [3], v1.constant_initializer([1.0, 1.0, 1.0]), True),
                ("bias", [3], v1.constant_initializer([1.0, 1.0, 1.0]), True),
            )
        ]
        variables = {variable.op.name: variable for variable in made}
        with v1.Session() as session:
            initialize(session, variables, store_for(variables))
    (line,) = lines
    assert "Received: 2 that start equal, such as key, query." in line
