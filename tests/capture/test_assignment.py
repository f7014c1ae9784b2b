"""Reads and assignments of variables against TensorFlow, in the order control edges give them."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

from tests.capture.steps_of_both import Built, check_steps

pytestmark = pytest.mark.tf
v1 = tf.compat.v1
START = np.arange(6, dtype=np.float32).reshape(3, 2)
BATCHES = [(START[::-1] + number,) for number in range(3)]


def after(*operations):
    """Control dependency on operations."""
    return tf.control_dependencies(operations)


def test_reads_before_and_after_an_assignment_differ():
    def build(x):
        w = tf.Variable(START)
        before = w.read_value()
        with after(before):
            assigned = w.assign(x * 2.0)
        with after(assigned):
            behind = w.read_value()
        return Built({"before": before, "behind": behind}, [assigned.op])

    check_steps(build, *BATCHES)


def test_a_read_waits_for_the_assignment_it_depends_on_though_it_was_built_first():
    def build(x):
        w = tf.Variable(START)
        gate = tf.identity(x)
        assigned = w.assign_add(gate)
        with after(assigned):
            doubled = w.read_value() * 2.0
        return Built({"doubled": doubled}, [])

    check_steps(build, *BATCHES)


def test_additions_and_subtractions_accumulate():
    def build(x):
        w = tf.Variable(START)
        added = w.assign_add(x)
        with after(added):
            taken = w.assign_sub(0.5 * x)
        return Built({}, [taken.op])

    check_steps(build, *BATCHES)


def test_a_variable_assigned_twice_has_the_last_value():
    def build(x):
        w, other = tf.Variable(START), tf.Variable(START)
        first = w.assign(x)
        with after(first):
            copied = other.assign(w)
            with after(copied):
                second = w.assign(w.read_value() + 1.0)
        return Built({}, [second.op])

    check_steps(build, *BATCHES)


def test_variables_may_swap_their_values():
    def build(x):
        a, b = tf.Variable(START), tf.Variable(START * x)
        old_a, old_b = a.read_value(), b.read_value()
        with after(old_a, old_b):
            return Built({}, [a.assign(old_b).op, b.assign(old_a).op])

    def start(x):
        return build(1.0 + tf.constant(START))

    check_steps(start, *BATCHES)


@pytest.mark.parametrize("method", ["scatter_add", "scatter_sub", "scatter_update"])
def test_scattered_rows_are_added_subtracted_or_replaced(method):
    def build(x):
        table = tf.Variable(START)
        rows = tf.IndexedSlices(x[:2], tf.constant([2, 0]))
        return Built({}, [getattr(table, method)(rows).op])

    check_steps(build, *BATCHES)


def test_rows_named_twice_are_added_twice():
    def build(x):
        table = tf.Variable(START)
        return Built({}, [table.scatter_add(tf.IndexedSlices(x, tf.constant([1, 1, 2]))).op])

    check_steps(build, *BATCHES)


def test_a_scalar_is_scattered_to_all_rows_named():
    def build(x):
        table = tf.Variable(START)
        op = tf.raw_ops.ResourceScatterAdd(
            resource=table.handle, indices=[0, 2], updates=tf.reduce_sum(x)
        )
        return Built({}, [op])

    check_steps(build, *BATCHES)


def test_rows_gathered_after_a_scatter_are_the_new_ones():
    def build(x):
        table = tf.Variable(START)
        scattered = table.scatter_update(tf.IndexedSlices(x[:1], tf.constant([1])))
        with after(scattered):
            return Built({"rows": tf.gather(table, [[1, 0], [2, 1]])}, [])

    check_steps(build, *BATCHES)


def test_the_shape_of_a_variable_is_known():
    def build(x):
        w = tf.Variable(START)
        shape = tf.raw_ops.VariableShape(input=w.handle, out_type=tf.int64)
        initialized = tf.raw_ops.VarIsInitializedOp(resource=w.handle)
        return Built({"shape": shape, "initialized": initialized}, [])

    step = check_steps(build, *BATCHES)
    assert all(value.constant is not None for value in step.results.values())


def test_partitioned_variables_are_read_and_assigned_part_by_part():
    def build(x):
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

    check_steps(build, *BATCHES)


def test_an_assignment_nobody_asks_for_is_not_made():
    def build(x):
        w = tf.Variable(START)
        w.assign(x)
        return Built({"w": w.read_value()}, [])

    assert not check_steps(build, *BATCHES).updates
