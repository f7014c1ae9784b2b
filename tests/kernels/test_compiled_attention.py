"""Compiled attention against the plain form in float64: blocks, masks, biases, dropout, layouts."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.kernels import compiled_flash_attention
from cerebras_tf.kernels.registry import COMPILED, PLAIN
from tests.kernels.compare import check_compiled, without_sgemm
from tests.tolerances import TOLERANCES

NEAR = TOLERANCES["attention"]
RANDOM = np.random.default_rng(11)


def _normal(*shape):
    return RANDOM.standard_normal(shape).astype("f")


def _check(q, k, v, extra=(), **attrs):
    attrs = {"scale": 0.3, **attrs}
    out, lse = check_compiled("attention", [q, k, v, *extra], NEAR, **attrs)
    operands = [_normal(*q.shape), q, k, v, out, lse, *extra]
    check_compiled("attention_grad", operands, NEAR, **attrs)


@pytest.fixture(params=["blocks", "blocks without the library"])
def small_blocks(request, monkeypatch):
    """Blocks of 4 queries, so that small operands cross every boundary."""
    monkeypatch.setattr(compiled_flash_attention, "QUERY_BLOCK", 4)
    if request.param == "blocks without the library":
        without_sgemm(monkeypatch)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", [(1, 1), (4, 4), (11, 11), (9, 13), (1, 7)])
def test_every_length_equals_the_plain_kernel(small_blocks, lengths, causal):
    queries, keys = lengths
    k, v = _normal(2, keys, 3, 5), _normal(2, keys, 3, 5)
    _check(_normal(2, queries, 3, 5), k, v, causal=causal)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads", [1, 2])
def test_heads_of_keys_that_several_heads_read_equal_the_plain_kernel(small_blocks, heads, causal):
    k, v = _normal(2, 11, heads, 5), _normal(2, 11, heads, 5)
    _check(_normal(2, 11, 4, 5), k, v, causal=causal)
    drawn = [np.array(3, np.int64), SEEDS]
    _check(_normal(2, 11, 4, 5), k, v, drawn, causal=causal, **DROPOUT)


@pytest.mark.parametrize(
    "shape", [(2, 3, 9, 11), (1, 3, 9, 11), (2, 1, 1, 11), (1, 1, 9, 1), (9, 11), ()]
)
@pytest.mark.parametrize("causal", [False, True])
def test_every_broadcast_bias_equals_the_plain_kernel(small_blocks, shape, causal):
    q, k, v = _normal(2, 9, 3, 5), _normal(2, 11, 3, 5), _normal(2, 11, 3, 5)
    _check(q, k, v, [_normal(*shape)], causal=causal)


def test_rows_whose_keys_are_all_hidden_equal_the_plain_kernel(small_blocks):
    bias = np.zeros((2, 1, 9, 11), "f")
    bias[:, :, :6] = np.finfo("f").min
    _check(_normal(2, 9, 3, 5), _normal(2, 11, 3, 5), _normal(2, 11, 3, 5), [bias], causal=False)


DROPOUT = {"rate": 0.3, "kept_scale": 1.4}
SEEDS = np.array([7, -2], np.int64)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("lengths", [(1, 1), (4, 4), (11, 11), (9, 13), (1, 7)])
def test_dropout_of_every_length_equals_the_plain_kernel(small_blocks, lengths, biased, causal):
    """Rows begin at any place in the groups of four that random numbers come in."""
    queries, keys = lengths
    k, v = _normal(2, keys, 3, 5), _normal(2, keys, 3, 5)
    extra = [*([_normal(2, 1, 1, keys)] if biased else []), np.array(3, np.int64), SEEDS]
    _check(_normal(2, queries, 3, 5), k, v, extra, causal=causal, **DROPOUT)


@pytest.mark.parametrize("causal", [False, True])
def test_dropout_in_large_blocks_drops_what_the_plain_kernel_drops(causal):
    """out = the weights where values are unit vectors; more rows than one thread takes."""
    q, k = _normal(2, 150, 3, 8), _normal(2, 150, 3, 8)
    v = np.broadcast_to(np.eye(150, dtype="f")[:, None], (2, 150, 3, 150))
    step = np.array(2**40, np.int64)
    attrs = {"scale": 0.3, "causal": causal, **DROPOUT}
    out = np.empty((2, 150, 3, 150), "f")
    COMPILED["attention"].run(q, k, v, step, SEEDS, out=(out, np.empty((2, 3, 150), "f")), **attrs)
    expected, _ = PLAIN["attention"](q, k, v, step, SEEDS, **attrs)
    np.testing.assert_array_equal(out == 0, expected == 0)
    assert 0.2 < (out == 0).mean() < (0.7 if causal else 0.4)


def test_slices_of_one_fused_projection_need_no_copies(small_blocks):
    fused = _normal(2, 10, 3, 4, 6)
    _check(fused[:, :, 0], fused[:, :, 1], fused[:, :, 2], causal=True)


def test_heads_stored_first_and_odd_strides_give_the_same_numbers(small_blocks):
    q, k, v = (_normal(2, 3, 10, 4).transpose(0, 2, 1, 3) for _ in range(3))
    _check(q, k, v, causal=True)
    q, k, v = (_normal(2, 10, 3, 8)[..., ::2] for _ in range(3))
    _check(q, k, v, causal=False)


def test_hidden_keys_by_minus_infinity_do_not_count(small_blocks):
    q, k, v = _normal(1, 9, 2, 4), _normal(1, 11, 2, 4), _normal(1, 11, 2, 4)
    bias = np.where(np.arange(11) < 6, 0, -np.inf).astype("f")
    masked, cut = np.empty_like(q), np.empty_like(q)
    lse = np.empty((1, 2, 9), "f")
    COMPILED["attention"].run(q, k, v, bias, out=(masked, lse), scale=0.5, causal=False)
    COMPILED["attention"].run(q, k[:, :6], v[:, :6], out=(cut, lse), scale=0.5, causal=False)
    np.testing.assert_allclose(masked, cut, *NEAR)
