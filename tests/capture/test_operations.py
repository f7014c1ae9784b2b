"""TensorFlow's classes have the members of the protocols, which mypy cannot check."""

from __future__ import annotations

import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

from cerebras_tf.capture import operations
from cerebras_tf.capture.functions import function_bodies

pytestmark = pytest.mark.tf


@pytest.fixture(scope="module")
def instances():
    """One object of TensorFlow for every protocol."""
    with tf.Graph().as_default():
        x = tf.compat.v1.placeholder(tf.float32, [2, None])
        chosen = tf.cond(tf.reduce_all(x > 0.0), lambda: x + 1.0, lambda: x)
        (conditional,) = (op for op in x.graph.get_operations() if function_bodies(op))
    return {
        "DType": x.dtype,
        "FunctionBody": function_bodies(conditional)[0],
        "Operation": chosen.op,
        "StaticShape": x.shape,
        "Tensor": x,
    }


def protocols():
    found = {name: item for name, item in vars(operations).items() if isinstance(item, type)}
    return {name: item for name, item in found.items() if item.__module__ == operations.__name__}


def test_every_protocol_is_compared_with_an_object(instances):
    assert set(protocols()) == set(instances)


def test_objects_have_all_members_of_their_protocol(instances):
    for name, protocol in protocols().items():
        methods = {name for name, item in vars(protocol).items() if callable(item)}
        members = {name for name in methods if not name.startswith("__")}
        members |= set(protocol.__annotations__)
        assert len(members) >= 2
        lacking = {member for member in members if not hasattr(instances[name], member)}
        assert lacking == set(), name
