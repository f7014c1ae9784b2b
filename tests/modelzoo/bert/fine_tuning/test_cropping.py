"""Tests of modelzoo/bert/fine_tuning/cropping.py: only padding is cut."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow.compat.v1")

from modelzoo.bert.fine_tuning.cropping import crop_padding


@pytest.mark.parametrize(("longest", "length"), [(3, 4), (4, 6), (5, 6), (6, 10), (10, 10)])
def test_rows_become_the_smallest_bound_above_the_longest(longest, length):
    ids = np.arange(20, dtype=np.int32).reshape(2, 10)
    with tf.Graph().as_default(), tf.Session() as session:
        tensors = {"ids": tf.constant(ids), "place": tf.constant([[1], [2]])}
        cropped = crop_padding(tensors, tf.constant([2, longest]), [4, 6, 10])
        found = session.run(cropped)
    np.testing.assert_array_equal(found["ids"], ids[:, :length])
    np.testing.assert_array_equal(found["place"], [[1], [2]])
