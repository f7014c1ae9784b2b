"""Tests of modelzoo.common.data.batches.py: each example once an epoch, in fitting rows."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.errors import DataError
from modelzoo.common.data.batches import BatchPlan

BOUNDS = (8, 16, 72)


def lengths(count=203):
    return np.random.default_rng(3).integers(3, 73, count)


def epoch(plan, number):
    first = number * plan.batches_per_epoch
    return [plan.batch(first + place) for place in range(plan.batches_per_epoch)]


@pytest.mark.parametrize("seed", [None, 5])
def test_every_example_comes_once_an_epoch(seed):
    plan = BatchPlan(lengths(), 10, BOUNDS, seed, keep_rest=True)
    chosen = np.concatenate([examples for examples, _ in epoch(plan, 2)])
    assert sorted(chosen) == list(range(203))


def test_without_the_rest_all_batches_are_full():
    plan = BatchPlan(lengths(), 10, BOUNDS, 5)
    batches = epoch(plan, 0)
    assert len(batches) == 20 and {len(examples) for examples, _ in batches} == {10}
    assert len({int(place) for examples, _ in batches for place in examples}) == 200


@pytest.mark.parametrize("seed", [None, 5])
def test_rows_hold_their_longest_example_and_are_the_smallest_that_do(seed):
    given = lengths()
    for examples, length in epoch(BatchPlan(given, 10, BOUNDS, seed, keep_rest=True), 0):
        longest = given[examples].max()
        assert length in BOUNDS and (longest < length or longest == length == 72)
        assert all(longest >= bound for bound in BOUNDS if bound < length)


def test_buckets_leave_less_padding_than_whole_rows():
    given = lengths()
    padded = sum(len(e) * size for e, size in epoch(BatchPlan(given, 10, BOUNDS, 5), 0))
    assert given.sum() < padded < 200 * 72


def test_a_batch_depends_on_its_number_and_the_seed_alone():
    one, other = (BatchPlan(lengths(), 10, BOUNDS, 5) for _ in range(2))
    for number in (45, 3, 44):
        other.batch(number - 1)
        np.testing.assert_array_equal(one.batch(number)[0], other.batch(number)[0])
    assert not np.array_equal(one.batch(0)[0], one.batch(one.batches_per_epoch)[0])


def test_without_a_seed_examples_keep_their_order():
    plan = BatchPlan(lengths(), 10, BOUNDS, None, keep_rest=True)
    chosen = np.concatenate([examples for examples, _ in epoch(plan, 0)])
    np.testing.assert_array_equal(chosen, np.arange(203))


def test_too_few_examples_are_told():
    with pytest.raises(DataError, match=r"at least 10 examples, one batch\. Received: 4"):
        BatchPlan([3, 4, 5, 6], 10, BOUNDS, 1)
