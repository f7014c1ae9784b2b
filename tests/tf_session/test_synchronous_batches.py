"""Batches are read in the thread of the step if the dataset has its own threads."""

from __future__ import annotations

import threading

import pytest

tf = pytest.importorskip("tensorflow")
v1 = tf.compat.v1

from cerebras_tf.tf_session.synchronous_batches import SynchronousBatches, has_threads, without_pool
from tests.estimator.regression import assert_equal, build, dataset, variables_of

pytestmark = pytest.mark.tf


def with_threads(batches, count=2):
    options = tf.data.Options()
    options.threading.private_threadpool_size = count
    return batches.with_options(options)


def test_a_configuration_without_threads_is_copied():
    given = v1.ConfigProto(allow_soft_placement=True)
    found = without_pool(given)
    assert found.allow_soft_placement and found.inter_op_parallelism_threads == -1
    assert given == v1.ConfigProto(allow_soft_placement=True)
    for threads in (
        {"inter_op_parallelism_threads": 3},
        {"session_inter_op_thread_pool": [{"num_threads": 2}]},
        {"use_per_session_threads": True},
    ):
        assert without_pool(v1.ConfigProto(**threads)) is None


def test_whether_a_dataset_has_threads(recwarn):
    with tf.Graph().as_default():
        batches = tf.data.Dataset.range(3)
        assert has_threads(with_threads(batches).map(lambda number: number + 1))
        assert not any(map(has_threads, (batches, with_threads(batches, 0), (1, None))))
    assert not [item for item in recwarn.list if item.category is UserWarning]


def test_batches_of_every_kind_come_in_the_calling_thread(graph):
    threads = []

    def noted(dense):
        threads.append(threading.get_ident())
        return dense

    def batch(number):
        dense = tf.fill([2], number)
        rows = tf.RaggedTensor.from_row_lengths(dense, [2])
        return {"dense": dense, "sparse": tf.sparse.from_dense(dense)}, rows

    batches = SynchronousBatches(tf.data.Dataset.range(1, 4).map(batch))
    iterator = v1.data.make_initializable_iterator(batches)
    features, ragged = iterator.get_next()
    assert features["dense"].op.name == "IteratorGetNext"
    features["dense"] = tf.numpy_function(noted, [features["dense"]], tf.int64)
    with v1.Session(config=without_pool(v1.ConfigProto())) as session:
        session.run(iterator.initializer)
        for number in (1, 2, 3):
            found, rows = session.run([features, ragged])
            assert found["dense"].tolist() == [number] * 2 == found["sparse"].values.tolist()
            assert rows.to_list() == [[number] * 2]
        with pytest.raises(tf.errors.OutOfRangeError):
            session.run(ragged)
    assert set(threads) == {threading.get_ident()}


@pytest.mark.parametrize("own", [True, False])
def test_a_dataset_with_threads_of_its_own_gives_the_same_results(tmp_path, own):
    found = []

    class Asked(tf.estimator.SessionRunHook):
        def after_create_session(self, session, coord):
            found.append(session._config.inter_op_parallelism_threads)

    def input_fn():
        batches = dataset().map(lambda *given: given, 2)
        return with_threads(batches) if own else batches

    made, other = build(tmp_path / "made"), build(tmp_path / "other")
    made.train(input_fn, [Asked()], max_steps=3)
    scores = made.evaluate(input_fn, 2, [Asked()])
    assert found == [-1 if own else 0] * 2
    other.train(dataset, max_steps=3)
    assert_equal(variables_of(tmp_path / "made"), variables_of(tmp_path / "other"), 0)
    assert scores == other.evaluate(dataset, steps=2)
    made.train(input_fn, [Asked()], max_steps=4, use_cs=False)
    assert found[2:] == [0]


@pytest.mark.parametrize("own", [True, False])
def test_predictions_warn_only_of_features_that_are_no_dataset(tmp_path, own, caplog):
    made = build(tmp_path)
    made.train(dataset, max_steps=1)

    def input_fn():
        batches = dataset().map(lambda features, labels: features)
        return with_threads(batches) if own else batches

    assert len(list(made.predict(input_fn, num_samples=2))) == 2
    assert "yields forever" not in caplog.text
    predictions = made.predict(lambda: tf.ones([4, 3]), num_samples=2)
    assert len(list(predictions)) == 2 and "yields forever" in caplog.text
