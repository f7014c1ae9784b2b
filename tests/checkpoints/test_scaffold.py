"""A user's scaffold has the same effect on variables on the wafer as on the host."""

from __future__ import annotations

import pytest

pytest.importorskip("tensorflow")

import numpy as np
import tensorflow as tf

from cerebras_tf.errors import ConfigError
from tests.estimator import regression
from tests.estimator.regression import assert_equal, build, dataset, variables_of
from tests.messages import raises

pytestmark = pytest.mark.tf
v1 = tf.compat.v1
PLACES = (False, True)


def kernel_variable():
    return next(v for v in v1.global_variables() if v.op.name == "layer/kernel")


def averaged_model(features, labels, mode, params):
    """Trains with an exponential moving average of its weights, and evaluates the average."""
    spec = regression.model_fn(features, labels, mode, params)
    average = tf.train.ExponentialMovingAverage(0.5)
    if mode == tf.estimator.ModeKeys.TRAIN:
        with tf.control_dependencies([spec.train_op]):
            return spec._replace(train_op=average.apply(v1.trainable_variables()))
    saver = v1.train.Saver(average.variables_to_restore())
    return spec._replace(scaffold=v1.train.Scaffold(saver=saver))


@pytest.mark.parametrize("trained_on_wafer", PLACES)
def test_evaluation_and_prediction_use_averages_that_a_saver_restores(tmp_path, trained_on_wafer):
    made = build(tmp_path, model=averaged_model)
    made.train(dataset, max_steps=4, use_cs=trained_on_wafer)
    raw = build(tmp_path).evaluate(regression.ragged_dataset, use_cs=False)
    host = made.evaluate(regression.ragged_dataset, use_cs=False)
    wafer = made.evaluate(regression.ragged_dataset, use_cs=True)
    assert abs(raw["loss"] - host["loss"]) > 0.01
    assert wafer["loss"] == pytest.approx(host["loss"], rel=1e-5)
    rows = [list(made.predict(regression.ragged_dataset, use_cs=use_cs)) for use_cs in PLACES]
    for theirs, ours in zip(*rows):
        np.testing.assert_allclose(ours["scores"], theirs["scores"], rtol=1e-5, atol=1e-6)


def with_scaffold(make, mode_of_scaffold=None):
    """The model with the scaffold that `make()` builds in its graph."""

    def model(features, labels, mode, params):
        spec = regression.model_fn(features, labels, mode, params)
        if mode_of_scaffold in (None, mode):
            return spec._replace(scaffold=make())
        return spec

    return model


def test_a_saver_saves_and_restores_under_its_own_names(tmp_path):
    def make():
        names = {f"renamed/{v.op.name}": v for v in v1.global_variables()}
        return v1.train.Scaffold(saver=v1.train.Saver(names, max_to_keep=2))

    for place, order in (("mixed", [True, False, True]), ("host", [False] * 3)):
        for number, use_cs in enumerate(order):
            made = build(tmp_path / place, model=with_scaffold(make), save_checkpoints_steps=1)
            start = 2 * number
            made.train(lambda start=start: dataset(start), max_steps=start + 2, use_cs=use_cs)
    assert "renamed/layer/kernel" in variables_of(tmp_path / "host")
    assert_equal(variables_of(tmp_path / "mixed"), variables_of(tmp_path / "host"), 1e-5)
    kept = tf.train.get_checkpoint_state(str(tmp_path / "mixed")).all_model_checkpoint_paths
    assert [path.rpartition("-")[2] for path in kept] == ["5", "6"]


def test_an_object_based_saver_writes_the_names_of_the_host(tmp_path):
    def make():
        kernel = kernel_variable()
        rest = [v for v in v1.global_variables() if v is not kernel]
        return v1.train.Scaffold(saver=tf.train.Checkpoint(kernel=kernel, rest=rest))

    for use_cs in PLACES:
        made = build(tmp_path / str(use_cs), model=with_scaffold(make))
        made.train(dataset, max_steps=2, use_cs=use_cs)
    host, wafer = (variables_of(tmp_path / str(use_cs)) for use_cs in PLACES)
    graphs = [found.pop("_CHECKPOINTABLE_OBJECT_GRAPH") for found in (host, wafer)]
    assert graphs[0] == graphs[1]
    assert "kernel/.ATTRIBUTES/VARIABLE_VALUE" in host
    assert_equal(wafer, host, 1e-5)


def set_by_init_fn():
    def init_fn(scaffold, session):
        kernel = kernel_variable()
        session.run(assign)
        before = session.run(kernel)
        kernel.load(before * 2, session)

    kernel = kernel_variable()
    assign = v1.assign(kernel, np.full([3, 2], 0.25, np.float32))
    return v1.train.Scaffold(init_fn=init_fn)


def set_by_init_op():
    kernel = kernel_variable()
    value = v1.placeholder(tf.float32, [3, 2])
    with tf.control_dependencies([v1.global_variables_initializer()]):
        init_op = tf.group(v1.assign(kernel, value))
    return v1.train.Scaffold(init_op=init_op, init_feed_dict={value: np.full([3, 2], 0.5)})


@pytest.mark.parametrize("make", [set_by_init_fn, set_by_init_op])
def test_training_starts_from_the_values_of_init_fn_and_init_op(tmp_path, make):
    for use_cs in PLACES:
        made = build(tmp_path / str(use_cs), model=with_scaffold(make), save_checkpoints_steps=1)
        made.train(dataset, max_steps=2, use_cs=use_cs)
    start = tf.train.load_checkpoint(str(tmp_path / "True" / "model.ckpt-0"))
    np.testing.assert_array_equal(start.get_tensor("layer/kernel"), np.full([3, 2], 0.5))
    assert_equal(variables_of(tmp_path / "True"), variables_of(tmp_path / "False"), 1e-5)


def random_model(features, labels, mode, params):
    """Weights start with random numbers."""
    with v1.variable_scope("", initializer=v1.random_normal_initializer()):
        kernel = v1.get_variable("layer/kernel", [3, 1])
    scores = tf.matmul(features, kernel)[:, 0]
    loss = tf.reduce_mean(tf.square(scores - labels))
    train_op = v1.train.AdamOptimizer().minimize(loss, v1.train.get_global_step())
    init_op = v1.global_variables_initializer() if params else None
    scaffold = v1.train.Scaffold(init_op=init_op)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op, scaffold=scaffold)


@pytest.mark.parametrize("own_init_op", [False, True])
def test_random_initial_values_are_those_of_the_host(tmp_path, own_init_op):
    for use_cs in PLACES:
        made = build(tmp_path / str(use_cs), {"own": 1} if own_init_op else {}, random_model)
        made.train(dataset, max_steps=1, use_cs=use_cs)
    start = [tf.train.load_checkpoint(str(tmp_path / str(c) / "model.ckpt-0")) for c in PLACES]
    kernels = [reader.get_tensor("layer/kernel") for reader in start]
    np.testing.assert_array_equal(*kernels)
    assert_equal(variables_of(tmp_path / "True"), variables_of(tmp_path / "False"), 1e-5)


def restored_by_init_fn(path):
    def make():
        names = {"layer/kernel": v1.global_variables("layer/kernel")[0]}
        saver = v1.train.Saver(names)
        return v1.train.Scaffold(init_fn=lambda scaffold, session: saver.restore(session, path))

    return with_scaffold(make)


def from_checkpoint(path):
    def model(features, labels, mode, params):
        spec = regression.model_fn(features, labels, mode, params)
        v1.train.init_from_checkpoint(path, {"layer/": "layer/"})
        return spec

    return model


@pytest.mark.parametrize("start_from", [restored_by_init_fn, from_checkpoint])
def test_training_starts_from_variables_of_another_checkpoint(tmp_path, start_from):
    build(tmp_path / "first").train(dataset, max_steps=3)
    path = tf.train.latest_checkpoint(str(tmp_path / "first"))
    for use_cs in PLACES:
        folder = tmp_path / str(use_cs)
        made = build(folder, model=start_from(path), save_checkpoints_steps=1)
        made.train(dataset, max_steps=2, use_cs=use_cs)
    start = tf.train.load_checkpoint(str(tmp_path / "True" / "model.ckpt-0"))
    expected = variables_of(tmp_path / "first")["layer/kernel"]
    np.testing.assert_array_equal(start.get_tensor("layer/kernel"), expected)
    assert_equal(variables_of(tmp_path / "True"), variables_of(tmp_path / "False"), 1e-5)


def test_no_variable_of_the_model_remains_in_the_session(tmp_path):
    class Look(tf.estimator.SessionRunHook):
        def begin(self):
            self.flags = [
                v1.is_variable_initialized(v)
                for v in v1.global_variables()
                if v.op.name != "global_step"
            ]

        def after_create_session(self, session, coord):
            self.found = type(session).run(session, self.flags)  # not through the wafer's hook

    look = Look()
    made = build(tmp_path, model=with_scaffold(set_by_init_fn))
    made.train(dataset, hooks=[look], max_steps=1)
    assert len(look.found) == 4 and not any(look.found)


def test_ready_ops_run_and_see_variables_on_the_wafer(tmp_path):
    run = []

    def note(name):
        run.append(name.decode())
        return np.array([], object)

    def make():
        def ready(name, variables=None):
            noted = tf.numpy_function(note, [name], tf.string)
            return tf.concat([noted, v1.report_uninitialized_variables(variables)], 0)

        for_local = ready("local", v1.global_variables())
        return v1.train.Scaffold(ready_op=ready("ready"), ready_for_local_init_op=for_local)

    made = build(tmp_path, model=with_scaffold(make))
    for call in (lambda: made.train(dataset, max_steps=1), lambda: made.evaluate(dataset, steps=1)):
        run.clear()
        call()
        assert {"ready", "local"} <= set(run)


def test_a_ready_op_that_names_a_variable_ends_training(tmp_path):
    made = build(
        tmp_path, model=with_scaffold(lambda: v1.train.Scaffold(ready_op=tf.constant(["x"])))
    )
    with pytest.raises(RuntimeError, match="did not make model ready"):
        made.train(dataset, max_steps=1)


def table_model(features, labels, mode, params):
    """Looks words up in a table, which a local_init_op of its own initializes."""
    words = tf.constant(["a", "b", "c"])
    keys = tf.lookup.KeyValueTensorInitializer(words, tf.constant([2.0, 3.0, 4.0]))
    table = tf.lookup.StaticHashTable(keys, -1.0)
    factor = tf.reduce_mean(table.lookup(tf.constant(["a", "c", "x"])), keepdims=True)
    counter = v1.get_local_variable("counter", initializer=[1.0], use_resource=True)
    spec = regression.model_fn(features * factor * counter, labels, mode, params)
    group = tf.group(v1.tables_initializer(), v1.local_variables_initializer())
    return spec._replace(scaffold=v1.train.Scaffold(local_init_op=group if params else None))


@pytest.mark.parametrize("own", [False, True])
def test_local_tables_and_variables_are_initialized(tmp_path, own):
    found = []
    for use_cs in PLACES:
        made = build(tmp_path / str(use_cs), {"own": 1} if own else {}, table_model)
        made.train(dataset, max_steps=2, use_cs=use_cs)
        found.append(made.evaluate(regression.ragged_dataset, use_cs=use_cs)["loss"])
        rows = [row["scores"] for row in made.predict(regression.ragged_dataset, use_cs=use_cs)]
        found.append(np.concatenate([np.ravel(row) for row in rows]))
    for wafer, host in zip(found[2:], found[:2]):
        np.testing.assert_allclose(wafer, host, rtol=1e-5)


def test_a_local_init_op_that_assigns_weights_is_refused(tmp_path):
    def make():
        kernel = kernel_variable()
        return v1.train.Scaffold(local_init_op=tf.group(v1.assign(kernel, kernel * 2)))

    with raises(ConfigError, "local_init_op", "layer/kernel"):
        build(tmp_path, model=with_scaffold(make)).train(dataset, max_steps=1)


def test_a_summary_op_replaces_the_merged_summaries(tmp_path):
    def make():
        v1.summary.scalar("merged", v1.get_default_graph().get_tensor_by_name("cost:0"))
        own = v1.summary.scalar("own", v1.get_default_graph().get_tensor_by_name("cost:0") * 2)
        return v1.train.Scaffold(summary_op=own)

    made = build(tmp_path, model=with_scaffold(make), save_summary_steps=1)
    made.train(dataset, max_steps=2)
    tags = {
        value.tag
        for path in tmp_path.glob("events.out.tfevents.*")
        for event in v1.train.summary_iterator(str(path))
        for value in event.summary.value
    }
    assert "own" in tags and "merged" not in tags


def test_tables_and_strings_are_saved_in_checkpoints(tmp_path):
    def model(features, labels, mode, params):
        table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, 0, name="seen")
        word = v1.get_variable("word", initializer="none", trainable=False)
        spec = regression.model_fn(features, labels, mode, params)
        note = tf.group(table.insert(["a"], [7]), v1.assign(word, "set"))
        counts = table.lookup(tf.constant(["a"]))
        if mode == tf.estimator.ModeKeys.TRAIN:
            init_fn = lambda scaffold, session: session.run(note)  # noqa: E731
            return spec._replace(scaffold=v1.train.Scaffold(init_fn=init_fn))
        rows = tf.ones([4], tf.int64)
        return spec._replace(predictions={"a": rows * counts, "word": tf.fill([4], word)})

    for use_cs in PLACES:
        made = build(tmp_path / str(use_cs), model=model)
        made.train(dataset, max_steps=1, use_cs=use_cs)
        rows = next(made.predict(dataset, use_cs=use_cs))
        assert rows == {"a": 7, "word": b"set"}, use_cs
    names = [set(variables_of(tmp_path / str(use_cs))) for use_cs in PLACES]
    assert names[0] == names[1]


PARTS = {
    "init_fn": lambda: {"init_fn": lambda scaffold, session: None},
    "saver": lambda: {"saver": v1.train.Saver()},
    "local_init_op": lambda: {"local_init_op": v1.local_variables_initializer()},
    "ready_op": lambda: {"ready_op": tf.constant([], tf.string)},
}


@pytest.mark.parametrize("part", PARTS)
def test_moving_averages_start_from_the_weights_with_a_scaffold(tmp_path, part):
    def averaged(features, labels, mode, params):
        spec = regression.model_fn(features, labels, mode, params)
        average = tf.train.ExponentialMovingAverage(0.5)
        with tf.control_dependencies([spec.train_op]):
            train_op = average.apply(v1.trainable_variables())
        return spec._replace(train_op=train_op, scaffold=v1.train.Scaffold(**PARTS[part]()))

    for use_cs in (True, False):
        made = build(tmp_path / str(use_cs), model=averaged, use_cs=use_cs)
        made.train(dataset, max_steps=2)
    assert_equal(variables_of(tmp_path / "True"), variables_of(tmp_path / "False"), rtol=1e-5)
