"""Parity of the CTC loss with TensorFlow."""

from __future__ import annotations

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from tests.parity.harness import check_parity, normal

pytestmark = pytest.mark.tf

# Sequence 2 has a repeated label, sequence 3 more labels than steps.
INDICES = np.array([[0, 0], [0, 1], [0, 2], [1, 0], [2, 0], [2, 1], [3, 0], [3, 1]], "int64")
VALUES = np.array([1, 0, 3, 1, 2, 2, 0, 1], "int32")
LENGTHS = np.array([7, 5, 4, 1], "int32")


@pytest.mark.parametrize("merge", [True, False])
def test_ctc_loss_agrees_with_tensorflow(merge):
    """In float32: TensorFlow adds logarithms in float32 in any case."""

    def build(x):
        return tf.raw_ops.CTCLoss(
            inputs=x[0],
            labels_indices=INDICES,
            labels_values=VALUES,
            sequence_length=LENGTHS,
            ctc_merge_repeated=merge,
            ignore_longer_outputs_than_inputs=True,
        )[0]

    check_parity(build, [normal(7, 4, 5)], "loss")


@pytest.mark.parametrize("blank", [0, 2, -1])
def test_ctc_loss_of_any_blank_agrees_with_tensorflow(blank):
    def build(x):
        values = np.where(blank % 5 == VALUES, 4, VALUES)
        sparse = tf.SparseTensor(INDICES[:6], values[:6], [3, 3])
        return tf.compat.v1.nn.ctc_loss_v2(
            sparse, x[0], None, LENGTHS[:3], logits_time_major=False, blank_index=blank
        )

    check_parity(build, [normal(3, 7, 5)], "loss")


def test_more_labels_than_steps_are_an_error_of_the_data():
    from cerebras_tf.errors import DataError
    from cerebras_tf.kernels.registry import evaluate

    operands = [normal(7, 4, 5), INDICES, VALUES, LENGTHS]
    with pytest.raises(DataError, match="1 steps and 2 labels of sequence 3"):
        evaluate("ctc_loss", operands, {"merge": True, "skip_long": False})
