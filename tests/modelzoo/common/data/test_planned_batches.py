"""Tests of datasets whose batches are assembled in Python."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow.compat.v1")

from modelzoo.common.data.batches import BatchPlan, planned_batches, predict_batches, row_shape

LENGTHS = [2, 5, 1, 3, 4]


def assemble(chosen, length):
    rows = np.zeros([len(chosen), length], np.int32)
    for row, number in zip(rows, chosen):
        row[: LENGTHS[number]] = number + 1
    return {"number": chosen.astype(np.int32), "rows": rows, "unused": None}


def read(make):
    with tf.Graph().as_default(), tf.Session() as session:
        dataset = make()
        batch = tf.data.make_one_shot_iterator(dataset).get_next()
        shapes = {name: tensor.shape.as_list() for name, tensor in batch.items()}
        found = []
        while len(found) < 9:
            try:
                found.append(session.run(batch))
            except tf.errors.OutOfRangeError:
                break
        return shapes, found


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


def test_batches_of_training_have_one_size_and_go_on_without_end():
    plan = BatchPlan(LENGTHS, 2, [6], seed=3)
    columns = {"number": ([], tf.int32)}
    shapes, found = read(lambda: planned_batches(plan, assemble, columns, 1, 2, repeats=True))
    assert shapes == {"number": [2]} and len(found) == 9
    expected = [plan.batch(number)[0].tolist() for number in range(1, 10)]
    assert [batch["number"].tolist() for batch in found] == expected
