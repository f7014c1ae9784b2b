"""Checks which operations of the session read the wafer's step, and which stay as they were."""

from __future__ import annotations

import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

from tests.estimator import regression
from tests.estimator.regression import build, dataset

pytestmark = pytest.mark.tf
v1 = tf.compat.v1


def wired(tmp_path, extra=None):
    """(wiring, graph) of the model after a training step; `extra` adds to the graph."""

    def model(features, labels, mode, params):
        spec = regression.model_fn(features, labels, mode, params)
        if extra is not None:
            extra()
        return spec

    with regression.models_built() as models:
        build(tmp_path, model=model).train(dataset, max_steps=1)
    wiring = models[-1].wiring
    return wiring, wiring.placement.graph


def tensor(name):
    return v1.get_default_graph().get_tensor_by_name(name)


def ancestors(op):
    seen, stack = set(), [op]
    while stack:
        current = stack.pop()
        if current not in seen:
            seen.add(current)
            stack.extend(t.op for t in current.inputs)
            stack.extend(current.control_inputs)
    return seen


def test_no_operation_of_the_session_reads_a_value_of_the_wafer(tmp_path):
    def extra():
        tf.strings.as_string(tensor("hidden:0"), name="written")

    wiring, graph = wired(tmp_path, extra)
    assert wiring.placement.host_readers() == []
    written = graph.get_operation_by_name("written")
    assert wiring.token.op in ancestors(written)
    assert wiring.needs(written) == {"hidden:0"}


def test_readers_of_one_tensor_share_an_entry(tmp_path):
    def extra():
        tf.strings.as_string(tensor("hidden:0"), name="first")
        tf.strings.as_string(tensor("hidden:0"), name="second")

    _, graph = wired(tmp_path, extra)
    first, second = (graph.get_operation_by_name(name) for name in ("first", "second"))
    assert first.inputs[0] is second.inputs[0]


def test_the_training_op_runs_nothing_of_the_model_in_the_session(tmp_path):
    wiring, graph = wired(tmp_path)
    run = ancestors(wiring.train_op)
    assert not [op.name for op in run if op.type == "MatMul" or op.type.startswith("Resource")]
    assert graph.get_operation_by_name("hidden") not in run


def test_initializers_do_not_wait_for_a_step(tmp_path):
    def extra():
        v1.add_to_collection("init", v1.global_variables_initializer())

    wiring, graph = wired(tmp_path, extra)
    (init,) = graph.get_collection("init")
    assert wiring.token.op not in ancestors(init)


def test_checks_and_prints_of_the_model_still_run_with_every_step(tmp_path, capfd):
    def model(features, labels, mode, params):
        printed = tf.print("printed", tf.shape(features)[0])
        with tf.control_dependencies([printed, tf.debugging.assert_equal(tf.shape(labels)[0], 4)]):
            features = tf.identity(features)
        return regression.model_fn(features, labels, mode, params)

    build(tmp_path / "fits", model=model).train(dataset, max_steps=2)
    assert capfd.readouterr().err.count("printed 4") == 2
    with pytest.raises(tf.errors.InvalidArgumentError):
        build(tmp_path / "odd", model=model).train(regression.ragged_dataset, max_steps=2)


def test_checks_and_prints_of_what_the_wafer_computes_run_after_the_step(tmp_path, capfd):
    def model(limit):
        def model_fn(features, labels, mode, params):
            spec = regression.model_fn(features, labels, mode, params)
            printed = tf.print("printed", spec.loss)
            with tf.control_dependencies([printed, tf.debugging.assert_less(spec.loss, limit)]):
                step = v1.train.get_global_step()
                train_op = v1.train.GradientDescentOptimizer(0.1).minimize(1.0 * spec.loss, step)
            return spec._replace(train_op=train_op)

        return model_fn

    build(tmp_path / "fits", model=model(1e9)).train(dataset, max_steps=2)
    assert capfd.readouterr().err.count("printed ") == 2
    with pytest.raises(tf.errors.InvalidArgumentError, match="assertion failed"):
        build(tmp_path / "large", model=model(1e-9)).train(dataset, max_steps=2)
