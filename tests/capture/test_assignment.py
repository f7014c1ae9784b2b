"""Reads and assignments of variables against TensorFlow, in the order of control edges."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

from tests.capture.steps_of_both import Built, Cases, check_steps

pytestmark = pytest.mark.tf
case = Cases()
v1 = tf.compat.v1
START = np.arange(6, dtype=np.float32).reshape(3, 2)
BATCHES = [(START[::-1] + number,) for number in range(3)]


def after(*operations):
    """Control dependency on operations."""
    return tf.control_dependencies(operations)


@case(*BATCHES)
def reads_before_and_after_an_assignment_differ(x):
    w = tf.Variable(START)
    before = w.read_value()
    with after(before):
        assigned = w.assign(x * 2.0)
    with after(assigned):
        later = w.read_value()
    return Built({"before": before, "after": later}, [assigned.op])


@case(*BATCHES)
def a_read_waits_for_the_assignment_it_depends_on_though_it_was_built_first(x):
    w = tf.Variable(START)
    gate = tf.identity(x)
    assigned = w.assign_add(gate)
    with after(assigned):
        doubled = w.read_value() * 2.0
    return Built({"doubled": doubled}, [])


@case(*BATCHES)
def several_assignments_in_a_step_accumulate(x):
    w, other = tf.Variable(START), tf.Variable(START)
    with after(w.assign_add(x)):
        subtracted = w.assign_sub(0.5 * x)
    with after(subtracted):
        copied = other.assign(w)
        with after(copied):
            second = w.assign(w.read_value() + 1.0)
    return Built({}, [second.op])


def test_variables_may_swap_their_values():
    def build(x):
        a, b = tf.Variable(START), tf.Variable(START * x)
        old_a, old_b = a.read_value(), b.read_value()
        with after(old_a, old_b):
            return Built({}, [a.assign(old_b).op, b.assign(old_a).op])

    def start(x):
        return build(1.0 + tf.constant(START))

    check_steps(start, *BATCHES)


@pytest.mark.parametrize(
    ("method", "rows"),
    [
        ("scatter_add", [2, 0]),
        ("scatter_add", [1, 1]),
        ("scatter_sub", [2, 0]),
        ("scatter_update", [2, 0]),
    ],
)
def test_scattered_rows_are_added_subtracted_or_replaced(method, rows):
    def build(x):
        table = tf.Variable(START)
        return Built({}, [getattr(table, method)(tf.IndexedSlices(x[:2], rows)).op])

    check_steps(build, *BATCHES)


@case(*BATCHES)
def a_scalar_is_scattered_to_all_rows(x):
    table = tf.Variable(START)
    op = tf.raw_ops.ResourceScatterAdd(
        resource=table.handle, indices=[0, 2], updates=tf.reduce_sum(x)
    )
    return Built({}, [op])


@case(*BATCHES)
def rows_gathered_after_a_scatter_are_the_new_ones(x):
    table = tf.Variable(START)
    scattered = table.scatter_update(tf.IndexedSlices(x[:1], tf.constant([1])))
    with after(scattered):
        return Built({"rows": tf.gather(table, [[1, 0], [2, 1]])}, [])


def test_the_shape_of_a_variable_is_known():
    def build(x):
        w = tf.Variable(START)
        shape = tf.raw_ops.VariableShape(input=w.handle, out_type=tf.int64)
        initialized = tf.raw_ops.VarIsInitializedOp(resource=w.handle)
        return Built({"shape": shape, "initialized": initialized}, [])

    step = check_steps(build, *BATCHES)
    assert all(value.constant is not None for value in step.results.values())


@case(*BATCHES)
def partitioned_variables_are_read_and_assigned_by_part(x):
    table = v1.get_variable(
        "table",
        [3, 2],
        initializer=v1.ones_initializer(),
        partitioner=v1.fixed_size_partitioner(3),
        use_resource=True,
    )
    whole = tf.convert_to_tensor(table)
    rows = v1.nn.embedding_lookup(table, [2, 0, 1], partition_strategy="div")
    with after(whole, rows):
        parts = [part.assign_add(x[i : i + 1]) for i, part in enumerate(table)]
    return Built({"whole": whole, "rows": rows}, [part.op for part in parts])


def test_an_assignment_that_is_not_fetched_is_not_made():
    def build(x):
        w = tf.Variable(START)
        w.assign(x)
        return Built({"w": w.read_value()}, [])

    assert not check_steps(build, *BATCHES).updates


@pytest.mark.parametrize(("build", "batches"), case)
def test_steps_are_those_of_tensorflow(build, batches):
    check_steps(build, *batches)
