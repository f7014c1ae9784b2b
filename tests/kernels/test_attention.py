"""Plain attention: its formula, masks, dropout, and gradients by central differences."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cerebras_tf.kernels.registry import PLAIN

RANDOM = np.random.default_rng(10)
B, S, T, A, D = 2, 3, 4, 2, 3
Q = RANDOM.standard_normal((B, S, A, D))
K, V = RANDOM.standard_normal((2, B, T, A, D))
BIAS = RANDOM.standard_normal((1, A, S, T))
DROPOUT = {"rate": 0.4, "kept_scale": 1.7}
DRAWN_FROM = (np.array(2, np.int64), np.array([3, 5], np.int64))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("bias", [(), (BIAS,)])
def test_attention_is_its_formula(causal, bias):
    out, lse = PLAIN["attention"](Q, K, V, *bias, scale=0.7, causal=causal)
    for b, s, a in np.ndindex(B, S, A):
        keys = range(min(T, s + T - S + 1)) if causal else range(T)
        weights = [
            math.exp(0.7 * Q[b, s, a] @ K[b, t, a] + (BIAS[0, a, s, t] if bias else 0))
            for t in keys
        ]
        mean = sum(w * V[b, t, a] for w, t in zip(weights, keys)) / sum(weights)
        np.testing.assert_allclose(out[b, s, a], mean, rtol=1e-12)
        assert math.isclose(lse[b, a, s], math.log(sum(weights)))


@pytest.mark.parametrize("hidden", [-1e9, np.finfo("f").min])
def test_a_row_whose_keys_are_all_hidden_has_equal_probabilities(hidden):
    """As a softmax of float32 scores has, to which such a bias is added."""
    q, k, v = (x.astype("f") for x in (Q, K, V))
    bias, dout = np.full((1, 1, S, T), hidden, "f"), np.flip(q).copy()
    out, lse = PLAIN["attention"](q, k, v, bias, scale=0.7, causal=False)
    found = PLAIN["attention_grad"](dout, q, k, v, out, lse, bias, scale=0.7, causal=False)
    centered = v - v.mean(axis=1, keepdims=True)
    ds = 0.7 / T * np.einsum("bsad,btad->bast", dout, centered)
    for grad, expected in zip(
        found,
        (
            np.einsum("bast,btad->bsad", ds, k),
            np.einsum("bast,bsad->btad", ds, q),
            np.broadcast_to(dout.sum(axis=1, keepdims=True) / T, v.shape),
        ),
    ):
        np.testing.assert_allclose(grad, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("bias", [(), (BIAS,)])
def test_dropout_scales_or_drops_each_weight_by_its_random_number(bias):
    attrs = {"scale": 0.7, "causal": True}
    numbers = PLAIN["random_uniform"](*DRAWN_FROM, shape=(B, A, S, T), dtype="float32")
    kept = numbers >= np.float32(0.4)
    assert 0 < kept.sum() < kept.size
    eye = np.broadcast_to(np.eye(T)[:, None], (B, T, A, T))  # out = the weights
    weights, lse = PLAIN["attention"](Q, K, eye, *bias, **attrs)
    dropped, same = PLAIN["attention"](Q, K, eye, *bias, *DRAWN_FROM, **attrs, **DROPOUT)
    np.testing.assert_array_equal(same, lse)
    expected = np.where(kept.transpose(0, 2, 1, 3), 1.7 * weights, 0)
    np.testing.assert_allclose(dropped, expected, rtol=1e-12)
