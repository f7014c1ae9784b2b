"""Tests of batches.py: each example once an epoch, in fitting rows, in any dataset."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow.compat.v1")

from cerebras_tf.errors import DataError
from modelzoo.common.data.batches import (
    BatchPlan,
    numbered_batches,
    planned_batches,
    predict_batches,
    row_shape,
)
from tests.messages import raises
from tests.reading import batches_of

BOUNDS = (8, 16, 72)


def lengths(count=203):
    return np.random.default_rng(3).integers(3, 73, count)


def epoch(plan, number):
    first = number * plan.batches_per_epoch
    return [plan.batch(first + place) for place in range(plan.batches_per_epoch)]


@pytest.mark.parametrize("seed", [None, 5])
def test_every_example_comes_once_an_epoch(seed):
    plan = BatchPlan(lengths(), 10, BOUNDS, seed, keep_remainder=True)
    chosen = np.concatenate([examples for examples, _ in epoch(plan, 2)])
    assert sorted(chosen) == list(range(203))
    assert (list(chosen) == sorted(chosen)) == (seed is None)


def test_without_the_last_partial_batch_all_are_full():
    plan = BatchPlan(lengths(), 10, BOUNDS, 5)
    batches = epoch(plan, 0)
    assert len(batches) == 20 and {len(examples) for examples, _ in batches} == {10}
    assert len({int(place) for examples, _ in batches for place in examples}) == 200


@pytest.mark.parametrize("seed", [None, 5])
def test_rows_hold_their_longest_example_and_are_the_smallest_that_do(seed):
    given = lengths()
    for examples, length in epoch(BatchPlan(given, 10, BOUNDS, seed, keep_remainder=True), 0):
        longest = given[examples].max()
        assert length in BOUNDS and (longest < length or longest == length == 72)
        assert all(longest >= bound for bound in BOUNDS if bound < length)


def test_a_batch_depends_on_its_number_and_the_seed_alone():
    one, other = (BatchPlan(lengths(), 10, BOUNDS, 5) for _ in range(2))
    for number in (45, 3, 44):
        other.batch(number - 1)
        np.testing.assert_array_equal(one.batch(number)[0], other.batch(number)[0])
    assert not np.array_equal(one.batch(0)[0], one.batch(one.batches_per_epoch)[0])


def test_too_few_examples_are_refused():
    with raises(DataError, 10, "Received: 4"):
        BatchPlan([3, 4, 5, 6], 10, BOUNDS, 1)


LENGTHS = [2, 5, 1, 3, 4]


def assemble(chosen, length):
    rows = np.zeros([len(chosen), length], np.int32)
    for row, number in zip(rows, chosen):
        row[: LENGTHS[number]] = number + 1
    return {"number": chosen.astype(np.int32), "rows": rows, "unused": None}


def read(make):
    """The shapes of the columns, and the first nine batches."""
    with tf.Graph().as_default():
        shapes = {name: spec.shape.as_list() for name, spec in make().element_spec.items()}
    return shapes, batches_of(make, 9)


def test_prediction_gives_every_example_once_in_order_padded_to_a_bucket():
    section = SimpleNamespace(batch_size=2, buckets=(3,), max_sequence_length=6)
    columns = {"rows": (row_shape(section), tf.int32), "number": ([], tf.int32)}
    shapes, found = read(lambda: predict_batches(section, LENGTHS, assemble, columns, 0))
    assert shapes == {"rows": [None, None], "number": [None]}
    assert [batch["number"].tolist() for batch in found] == [[0, 1], [2, 3], [4]]
    assert [batch["rows"].shape for batch in found] == [(2, 6), (2, 6), (1, 6)]
    assert found[1]["rows"].tolist() == [[3, 0, 0, 0, 0, 0], [4, 4, 4, 0, 0, 0]]
    _, rest = read(lambda: predict_batches(section, LENGTHS, assemble, columns, 2))
    assert [batch["number"].tolist() for batch in rest] == [[4]]


def test_batches_of_training_have_one_size_and_do_not_end():
    plan = BatchPlan(LENGTHS, 2, [6], seed=3)
    columns = {"number": ([], tf.int32)}
    shapes, found = read(lambda: planned_batches(plan, assemble, columns, 1, 2, repeats=True))
    assert shapes == {"number": [2]} and len(found) == 9
    expected = [plan.batch(number)[0].tolist() for number in range(1, 10)]
    assert [batch["number"].tolist() for batch in found] == expected


def test_the_size_of_batches_for_evaluation_is_known_and_training_gets_no_operation():
    with tf.Graph().as_default() as graph, tf.Session() as session:

        def size(*given):
            dataset = numbered_batches(lambda number: number, 1, 5, *given)
            return int(session.run(tf.data.experimental.cardinality(dataset)))

        assert size(False, False) == 4
        before = len(graph.get_operations())
        tf.data.Dataset.range(1, 5).map(lambda number: number).prefetch(2)
        plain = len(graph.get_operations()) - before
        numbered_batches(lambda number: number, 1, 5, False, True)
        assert len(graph.get_operations()) == before + 2 * plain
