"""Labels of -1 are no labels where a weight of 0 says so, and errors elsewhere."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.errors import BoundsError
from cerebras_tf.passes.fuse_linear_loss import fuse_linear_loss
from cerebras_tf.passes.skip_missing_labels import skip_missing_labels
from tests.graphs import check_pass, graph_of, ops_of, run_plain

TYPES = ("float32[2,3,4]", "float32[4,7]", "int32[2,3]", "float32[2,3]")
LABELS = np.array([[5, -1, 2], [-1, 0, 3]], np.int32)
WEIGHTS = np.array([[1, 0, 0.5], [0, 2, 0]], np.float32)


def weighted(b, h, w, labels, weights, factor=None):
    """Loss of labels [2, 3], as TensorFlow computes it: on rows."""
    rows = b.op("reshape", h, shape=(6, 4))
    logits = b.op("matmul", rows, w, transpose_a=False, transpose_b=False)
    loss = b.multi("sparse_softmax_xent", logits, b.op("reshape", labels, shape=(6,)))[0]
    loss = b.op("reshape", loss, shape=(2, 3))
    if factor is not None:
        loss = b.op("mul", loss, factor)
    return b.op("sum", b.op("mul", weights, loss), axes=(0, 1), keepdims=False)


def arrays(labels=LABELS, weights=WEIGHTS):
    random = np.random.default_rng(0)
    h, w = (random.standard_normal(shape).astype(np.float32) for shape in ((2, 3, 4), (4, 7)))
    return [h, w, labels, weights]


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("factor", [None, 0.5])
def test_rows_without_weight_need_no_label(fused, factor):
    def build(b, *inputs):
        return weighted(b, *inputs, factor and b.constant(factor, "float32"))

    graph = graph_of(build, *TYPES)
    if fused:
        fuse_linear_loss(graph)
    assert "select" in check_pass(graph, skip_missing_labels)
    (found,) = run_plain(graph, arrays())
    (expected,) = run_plain(graph, arrays(np.maximum(LABELS, 0)))
    assert found == expected
    for labels, weights in ((LABELS, WEIGHTS + 1), (np.where(LABELS < 0, -2, LABELS), WEIGHTS)):
        with pytest.raises(BoundsError):
            run_plain(graph, arrays(labels, weights))


def read_twice(b, *inputs):
    total = weighted(b, *inputs)
    loss = total.node.inputs[0].node.inputs[1]
    return total, b.op("sum", loss, axes=(0, 1), keepdims=False)


def weights_of_the_loss(b, h, w, labels, weights):
    loss = weighted(b, h, w, labels, weights).node.inputs[0].node.inputs[1]
    return b.op("mul", loss, b.op("exp", loss))


@pytest.mark.parametrize("build", [read_twice, weights_of_the_loss])
def test_it_is_not_applied_where_the_weight_proves_nothing(build):
    graph = graph_of(build, *TYPES)
    skip_missing_labels(graph)
    assert "select" not in ops_of(graph)


def test_weights_that_are_trained_read_the_loss():
    graph = graph_of(weighted, *TYPES)
    skip_missing_labels(graph, [graph.inputs[3]])
    assert "select" not in ops_of(graph)
