"""A session's operations read and assign stored variables in the store only."""

from __future__ import annotations

import pytest

pytest.importorskip("tensorflow")

import numpy as np
import tensorflow as tf

from cerebras_tf.checkpoints.reader import CheckpointMismatchError, MissingVariablesError
from cerebras_tf.checkpoints.stored_variables import StoredVariables, UserSaver
from cerebras_tf.errors import CheckpointError
from cerebras_tf.memoryx.store import write
from tests.machines import content_of
from tests.messages import raises
from tests.tf_session.test_initial_values import make_variables, store_for

pytestmark = pytest.mark.tf
v1 = tf.compat.v1


class Bench:
    """Variables in a store, and a session that must never hold them."""

    def __init__(self, make=None):
        self.variables = make_variables()
        self.made = make(self.variables) if make else None
        self.store = store_for(self.variables)
        self.stored = StoredVariables(self.variables, self.store)
        self.stored.add_transfer_ops()
        flags = [variable.is_initialized() for variable in self.variables.values()]
        v1.get_default_graph().finalize()
        self.session = v1.Session()
        self._flags = flags

    def run(self, *arguments):
        with self.stored.serving(self.session):
            return self.session.run(*arguments)

    def session_is_empty(self):
        return not any(self.session.run(self._flags))


@pytest.fixture
def graph():
    with tf.Graph().as_default():
        yield


def test_an_assignment_goes_to_the_store(graph):
    bench = Bench(lambda variables: variables["uniform"].assign(np.arange(4.0)))
    np.testing.assert_array_equal(bench.run(bench.made), np.arange(4.0))
    np.testing.assert_array_equal(content_of(bench.store, "uniform"), np.arange(4.0))
    assert not bench.store.has_value("normal")
    assert bench.session_is_empty()


def test_initializers_give_the_values_of_a_session(graph):
    bench = Bench(lambda variables: v1.global_variables_initializer())
    bench.run(bench.made)
    with v1.Session() as plain:
        plain.run(bench.made)
        expected = plain.run({name: v._graph_element for name, v in bench.variables.items()})
    for name, content in expected.items():
        np.testing.assert_array_equal(content_of(bench.store, name), content)
    assert bench.session_is_empty()


def test_a_loaded_array_goes_to_the_store(graph):
    bench = Bench()
    with bench.stored.serving(bench.session):
        bench.variables["normal"].load(np.full([3, 2], 7.0), bench.session)
    assert (content_of(bench.store, "normal") == 7).all()
    assert bench.session_is_empty()


def test_reads_return_the_values_of_the_store(graph):
    bench = Bench(lambda variables: variables["ones"].read_value() + 1)
    write(bench.store, "ones", np.array(5.0))
    assert bench.run(bench.variables["ones"]) == 5
    assert bench.run({"both": [bench.variables["ones"], bench.made]}) == {"both": [5, 6]}


def test_one_variable_may_be_assigned_from_another(graph):
    bench = Bench(lambda variables: variables["ones"].assign(variables["ones"].read_value() * 2))
    write(bench.store, "ones", np.array(5.0))
    assert bench.run(bench.made) == 10
    assert content_of(bench.store, "ones") == 10


@pytest.mark.parametrize("sharded", [False, True])
def test_a_saver_writes_and_reads_by_its_own_names(graph, tmp_path, sharded):
    def make(variables):
        names = {f"other/{name}": variable for name, variable in variables.items()}
        return v1.train.Saver(names, sharded=sharded)

    bench = Bench(make)
    saver = UserSaver(bench.made, bench.stored)
    for number, name in enumerate(bench.store.specs):
        write(bench.store, name, np.full(bench.store.specs[name].type.shape, number + 1.0))
    path = saver.save(bench.session, str(tmp_path / "model"), 3)
    reader = tf.train.load_checkpoint(path)
    assert path == tf.train.latest_checkpoint(str(tmp_path)) == str(tmp_path / "model-3")
    assert set(reader.get_variable_to_shape_map()) == {f"other/{name}" for name in bench.variables}
    for name in bench.store.specs:
        write(bench.store, name, np.zeros(bench.store.specs[name].type.shape))
    saver.restore(bench.session, path)
    for number, name in enumerate(bench.store.specs):
        assert (content_of(bench.store, name) == number + 1).all()
        assert content_of(bench.store, name).dtype == reader.get_tensor(f"other/{name}").dtype
    assert bench.session_is_empty()


def test_a_restore_reads_one_variable_at_a_time(graph, tmp_path, monkeypatch):
    bench = Bench(lambda variables: v1.train.Saver(variables))
    for name, spec in bench.store.specs.items():
        write(bench.store, name, np.ones(spec.type.shape))
    saver = UserSaver(bench.made, bench.stored)
    path = saver.save(bench.session, str(tmp_path / "model"))
    run_ops = []
    run = bench.session.run
    monkeypatch.setattr(
        bench.session, "run", lambda *a: run_ops.append(a[0]) or run(*a), raising=True
    )
    saver.restore(bench.session, path)
    assert "save/restore_all" not in run_ops


def test_restored_checkpoints_are_not_written_again(graph, tmp_path):
    bench = Bench(lambda variables: v1.train.Saver(variables))
    for name, spec in bench.store.specs.items():
        write(bench.store, name, np.ones(spec.type.shape))
    saver = UserSaver(bench.made, bench.stored)
    path = saver.save(bench.session, str(tmp_path / "model"), 1)
    before = (tmp_path / "model-1.index").stat().st_mtime_ns
    saver.restore(bench.session, path)
    assert saver.save(bench.session, str(tmp_path / "model"), 1) == path
    assert (tmp_path / "model-1.index").stat().st_mtime_ns == before


def test_checkpoints_that_do_not_fit_raise_errors_of_tensorflow(graph, tmp_path):
    bench = Bench(lambda variables: v1.train.Saver(variables))
    with tf.Graph().as_default(), v1.Session() as other:
        variable = v1.get_variable("normal", [5, 2])
        variables = [variable, v1.get_variable("uniform", [4]), v1.get_variable("ones", [])]
        other.run(v1.global_variables_initializer())
        shape = v1.train.Saver(variables).save(other, str(tmp_path / "shape"))
        lack = v1.train.Saver([variable]).save(other, str(tmp_path / "lack"))
    saver = UserSaver(bench.made, bench.stored)
    with raises(CheckpointMismatchError, "normal [5, 2]"):
        saver.restore(bench.session, shape)
    with raises(tf.errors.InvalidArgumentError, "1 of another shape", "2 missing"):
        saver.restore(bench.session, lack)


def test_a_saver_of_some_variables_is_refused(graph, tmp_path):
    bench = Bench(lambda variables: v1.train.Saver([variables["normal"]]))
    write(bench.store, "normal", np.ones([3, 2]))
    saver = UserSaver(bench.made, bench.stored)
    path = saver.save(bench.session, str(tmp_path / "model"))
    with raises(CheckpointError, "uniform, ones"):
        saver.restore(bench.session, path)


def test_the_error_of_missing_variables_is_a_not_found_error():
    error = MissingVariablesError("checkpoint x: must contain")
    assert isinstance(error, (CheckpointError, ValueError))
    assert isinstance(error, tf.errors.NotFoundError)
    assert str(error) == error.message == "checkpoint x: must contain"
