"""Tests of modelzoo/bert/fine_tuning/data.py and encoding.py."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow.compat.v1")

from modelzoo.bert.fine_tuning.data import TOKENS, crop_padding
from modelzoo.common.fine_tuning.encoding import pad_tokens


@pytest.mark.parametrize(("longest", "length"), [(3, 4), (4, 6), (5, 6), (6, 10), (10, 10)])
def test_rows_are_cropped_to_the_smallest_bound_above_the_longest(longest, length):
    ids = np.arange(20, dtype=np.int32).reshape(2, 10)
    mask = (np.arange(10) < [[2], [longest]]).astype(np.int32)
    with tf.Graph().as_default(), tf.Session() as session:
        batch = {"ids": ids, "input_mask": mask, "other": ids}
        tensors = {name: tf.constant(value) for name, value in batch.items()}
        cropped = session.run(crop_padding(tensors, ("ids", "input_mask"), [4, 6, 10]))
    np.testing.assert_array_equal(cropped["ids"], ids[:, :length])
    np.testing.assert_array_equal(cropped["input_mask"], mask[:, :length])
    np.testing.assert_array_equal(cropped["other"], ids)


def test_padding_has_mask_and_segment_zero():
    example = SimpleNamespace(ids=np.array([3, 4, 5]), segments=np.array([0, 1, 1]))
    row = pad_tokens(example, 5, 9)
    assert [row[name].tolist() for name in TOKENS] == [
        [3, 4, 5, 9, 9],
        [1, 1, 1, 0, 0],
        [0, 1, 1, 0, 0],
    ]
    assert all(values.dtype == np.int32 for values in row.values())
