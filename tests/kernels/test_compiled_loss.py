"""Compiled cross-entropy, with and without the projection, against the plain forms in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cerebras_tf.errors import DataError
from cerebras_tf.kernels import compiled_linear_cross_entropy
from cerebras_tf.kernels.registry import COMPILED
from tests.kernels.compare import check_compiled
from tests.tolerances import TOLERANCES

NEAR = TOLERANCES["loss"]
RANDOM = np.random.default_rng(9)


def _normal(*shape):
    return RANDOM.standard_normal(shape).astype("f")


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("shape", [(1, 1), (5, 7), (200, 3001), (0, 4)])
def test_sparse_loss_and_gradient_equal_the_plain_ones(shape, dtype):
    logits = _normal(*shape) * 4
    labels = RANDOM.integers(0, shape[1], shape[0]).astype(dtype)
    _, lse = check_compiled("sparse_softmax_xent", [logits, labels], NEAR)
    dloss = _normal(shape[0])
    check_compiled("sparse_softmax_xent_grad", [dloss, logits, labels, lse], NEAR)


@pytest.mark.parametrize("shape", [(1, 1), (5, 7), (40, 3001), (0, 4)])
def test_dense_loss_and_gradient_equal_the_plain_ones(shape):
    logits, labels = _normal(*shape) * 4, RANDOM.random(shape).astype("f")
    check_compiled("softmax_xent", [logits, labels / shape[1]], NEAR)
    check_compiled("softmax_xent_grad", [_normal(shape[0]), logits, labels / shape[1]], NEAR)


def limit_chunks(monkeypatch, size):
    for name in ("_CHUNK_BYTES", "_MOST_BYTES"):
        monkeypatch.setattr(compiled_linear_cross_entropy, name, size)


@pytest.mark.parametrize(
    ("tokens", "vocabulary", "chunks"),
    [(2048, 50257, 2), (1024, 128256, 1), (2048, 128256, 2), (1024, 262144, 2)],
)
def test_large_vocabularies_have_chunks_of_as_many_tokens(tokens, vocabulary, chunks):
    assert compiled_linear_cross_entropy._num_chunks(tokens, vocabulary) == chunks


@pytest.mark.parametrize("transpose_weight", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("tokens", [0, 1, 23])
def test_projected_loss_equals_the_plain_one_whatever_the_chunks(
    monkeypatch, transpose_weight, biased, tokens
):
    """Chunks of at most 4 tokens, panels of 3 columns: every boundary is crossed."""
    vocabulary, width = 50, 6
    limit_chunks(monkeypatch, 4 * 4 * vocabulary)
    shape = (vocabulary, width) if transpose_weight else (width, vocabulary)
    h, weight, dloss = _normal(tokens, width), _normal(*shape), _normal(tokens)
    labels = RANDOM.integers(0, vocabulary, tokens)
    bias = [_normal(vocabulary)] if biased else []
    attrs = {"transpose_weight": transpose_weight}
    operands = [h, weight, labels]
    _, lse = check_compiled("linear_softmax_xent", [*operands, *bias], NEAR, **attrs)
    check_compiled("linear_softmax_xent_train", [dloss, *operands, *bias], NEAR, **attrs)
    check_compiled("linear_softmax_xent_grad", [dloss, *operands, lse, *bias], NEAR, **attrs)
    attrs["weight_gradient"] = False
    check_compiled("linear_softmax_xent_train", [dloss, *operands, *bias], NEAR, **attrs)


def test_chunks_cover_every_token_once_within_the_limit(monkeypatch):
    limit_chunks(monkeypatch, 4 * 4 * 50)
    model = compiled_linear_cross_entropy._Projection(
        _normal(23, 6), _normal(6, 50), np.zeros(23, int), None, False
    )
    chunks = list(model.chunks())
    assert [i for chunk in chunks for i in range(chunk.start, chunk.stop)] == list(range(23))
    assert max(chunk.stop - chunk.start for chunk in chunks) <= 4
    assert 4 * math.prod(model.logits_shape()) <= 4 * 4 * 50


@pytest.mark.parametrize("label", [-1, 7])
def test_a_label_outside_the_vocabulary_is_refused(label):
    labels, out = np.array([0, label]), (np.empty(2, "f"), np.empty(2, "f"))
    with pytest.raises(DataError, match=f"Received: {label} at position 1"):
        COMPILED["sparse_softmax_xent"].run(_normal(2, 7), labels, out=out)
    with pytest.raises(DataError, match=f"Received: {label} at position 1"):
        COMPILED["linear_softmax_xent"].run(
            _normal(2, 3), _normal(3, 7), labels, out=out, transpose_weight=False
        )


def test_a_nan_logit_makes_its_row_s_loss_nan_only():
    logits, loss, lse = _normal(3, 9), np.empty(3, "f"), np.empty(3, "f")
    logits[1, 4] = np.nan
    COMPILED["sparse_softmax_xent"].run(logits, np.array([0, 1, 2]), out=(loss, lse))
    np.testing.assert_array_equal(np.isnan(loss), [False, True, False])
