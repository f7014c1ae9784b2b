"""Parity of sorted search, vector products and fake quantization."""

from __future__ import annotations

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from tests.parity.harness import check_parity, integers, normal

pytestmark = pytest.mark.tf


@pytest.mark.parametrize("side", ["left", "right"])
def test_sorted_search_agrees_with_tensorflow(side):
    inputs = [np.sort(integers(3, 9, high=6).astype(np.float32)), np.arange(-1.0, 7.0)]
    inputs[1] = np.tile(inputs[1].astype(np.float32), (3, 1))
    check_parity(lambda x: tf.searchsorted(*x, side), inputs, "shape", gradient=False)


def test_vector_products_agree_with_tensorflow():
    check_parity(lambda x: tf.linalg.cross(*x), [normal(5, 3), normal(5, 3, seed=1)], "reduction")


@pytest.mark.parametrize("narrow", [False, True])
def test_fake_quantization_agrees_with_tensorflow(narrow):
    def build(x):
        fixed = tf.quantization.fake_quant_with_min_max_args(
            x[0], -1.0, 1.5, num_bits=4, narrow_range=narrow
        )
        learned = tf.quantization.fake_quant_with_min_max_vars(
            x[0], x[1], x[2], num_bits=4, narrow_range=narrow
        )
        ends = tf.stack([x[1], x[1] - 1, x[1] - 2]), tf.stack([x[2], x[2] + 1, x[2]])
        columns = tf.quantization.fake_quant_with_min_max_vars_per_channel(x[0], *ends)
        return [fixed, learned, columns]

    check_parity(build, [normal(20, 3), np.float32(-0.9), np.float32(1.1)], "reduction")
