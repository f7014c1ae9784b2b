"""Which variables are on the wafer, with their names and types."""

from __future__ import annotations

import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

from cerebras_tf.capture.variables import managed_variables, tensor_type, variable_spec
from cerebras_tf.errors import GraphError
from cerebras_tf.ir import TensorType, Variable

pytestmark = pytest.mark.tf
v1 = tf.compat.v1


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as made, v1.variable_scope("", use_resource=True):
        yield made


def specs(graph):
    """Specs of the wafer's variables, by name."""
    found = [variable_spec(variable) for variable in managed_variables(graph).values()]
    return {spec.name: spec for spec in found}


def test_variables_of_both_interfaces_are_owned_under_their_checkpoint_names(graph):
    v1.get_variable("scope/kernel", [2, 3])
    tf.Variable([1, 2], name="counts", trainable=False)
    assert specs(graph) == {
        "scope/kernel": Variable("scope/kernel", TensorType("float32", (2, 3)), True),
        "counts": Variable("counts", TensorType("int32", (2,)), False),
    }


def test_variables_of_keras_layers_are_owned(graph):
    tf.keras.layers.Dense(3, name="dense")(tf.ones([2, 4]))
    tf.keras.layers.BatchNormalization(name="norm")(tf.ones([2, 4]))
    found = specs(graph)
    assert found["dense/kernel"].type == TensorType("float32", (4, 3))
    assert not found["norm/moving_mean"].trainable
    assert len(found) == 6


def test_slots_of_optimizers_are_owned(graph):
    weight = v1.get_variable("weight", [2])
    v1.train.AdamOptimizer().minimize(tf.reduce_sum(weight))
    assert set(specs(graph)) == {
        "weight",
        "weight/Adam",
        "weight/Adam_1",
        "beta1_power",
        "beta2_power",
    }


def test_a_partitioned_variable_is_owned_part_by_part(graph):
    v1.get_variable("table", [6, 2], partitioner=v1.fixed_size_partitioner(3))
    found = specs(graph)
    assert set(found) == {"table/part_0", "table/part_1", "table/part_2"}
    assert all(spec.type.shape == (2, 2) for spec in found.values())


def test_local_variables_strings_and_the_global_step_stay_in_the_session(graph):
    v1.train.get_or_create_global_step()
    v1.metrics.mean(tf.constant(2.0))
    tf.Variable("vocabulary.txt", name="path", trainable=False)
    v1.get_variable("weight", [2])
    assert set(specs(graph)) == {"weight"}


def test_variables_are_found_by_the_operation_of_their_handle(graph):
    weight = v1.get_variable("weight", [2])
    assert managed_variables(graph) == {weight.handle.op: weight}


def test_the_type_of_a_tensor():
    assert tensor_type(v1.placeholder("float16", [None, 3])) == TensorType("float16", (None, 3))
    with pytest.raises(GraphError, match="string"):
        tensor_type(tf.constant("text"))
