"""Attention of packed tokens against attention of padded ones, and compiled against plain."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.kernels import compiled_flash_attention
from cerebras_tf.kernels.registry import COMPILED, PLAIN
from tests.kernels.compare import check_compiled, without_sgemm
from tests.tolerances import TOLERANCES

NEAR = TOLERANCES["attention"]
RANDOM = np.random.default_rng(3)
DROPOUT = {"rate": 0.3, "kept_scale": 1.4}
STEP, SEEDS = np.array(3, np.int64), np.array([7, -2], np.int64)
# Padded lengths, and real ones of each sequence.
QUERY_BLOCK, KEYS = (9, [3, 9, 1, 6]), (12, [12, 2, 5, 7])
HEADS, WIDTH = 3, 5


def _normal(*shape):
    return RANDOM.standard_normal(shape).astype("f")


def _offsets(counts):
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)


def _rows(padded, counts):
    return np.concatenate([item * padded + np.arange(n) for item, n in enumerate(counts)])


def _packed(x, space):
    return x.reshape(-1, *x.shape[2:])[_rows(*space)]


@pytest.mark.parametrize("dropouts", [False, True])
@pytest.mark.parametrize("causal, shared", [(False, HEADS), (True, HEADS), (True, 1)])
def test_packed_attention_is_attention_whose_padding_is_hidden(causal, shared, dropouts):
    keys = QUERY_BLOCK if causal else KEYS
    q, dout = _normal(4, QUERY_BLOCK[0], HEADS, WIDTH), _normal(4, QUERY_BLOCK[0], HEADS, WIDTH)
    k, v = (_normal(4, keys[0], shared, WIDTH) for _ in range(2))
    hidden = np.arange(keys[0]) >= np.array(keys[1])[:, None]
    bias = np.where(hidden, -1e9, 0).astype("f")[:, None, None]
    dout[np.arange(QUERY_BLOCK[0]) >= np.array(QUERY_BLOCK[1])[:, None]] = 0
    drawn = [STEP, SEEDS] if dropouts else []
    attrs = {"scale": 0.3, "causal": causal, **(DROPOUT if dropouts else {})}
    out, lse = PLAIN["attention"](q, k, v, bias, *drawn, **attrs)
    dq, dk, dv = PLAIN["attention_grad"](dout, q, k, v, out, lse, bias, *drawn, **attrs)

    offsets = [_offsets(QUERY_BLOCK[1]), _offsets(keys[1])]
    tensors = [_packed(q, QUERY_BLOCK), _packed(k, keys), _packed(v, keys)]
    attrs["lengths"] = QUERY_BLOCK[0], keys[0]
    found = PLAIN["packed_attention"](*tensors, *offsets, *drawn, **attrs)
    np.testing.assert_allclose(found[0], _packed(out, QUERY_BLOCK), rtol=1e-5, atol=1e-6)
    given = [_packed(dout, QUERY_BLOCK), *tensors, *found, *offsets, *drawn]
    gradients = PLAIN["packed_attention_grad"](*given, **attrs)
    for got, wanted, space in zip(gradients, (dq, dk, dv), (QUERY_BLOCK, keys, keys)):
        np.testing.assert_allclose(got, _packed(wanted, space), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("library", [True, False])
@pytest.mark.parametrize("dropouts", [False, True])
@pytest.mark.parametrize("causal, shared", [(False, HEADS), (True, HEADS), (True, 1)])
def test_compiled_equals_plain(causal, shared, dropouts, library, monkeypatch):
    """With blocks of 4 queries, and without the library too."""
    monkeypatch.setattr(compiled_flash_attention, "QUERY_BLOCK", 4)
    if not library:
        without_sgemm(monkeypatch)
    keys = QUERY_BLOCK if causal else KEYS
    totals = sum(QUERY_BLOCK[1]), sum(keys[1])
    tensors = [_normal(totals[0], HEADS, WIDTH), *(_normal(totals[1], shared, WIDTH),) * 2]
    offsets = [_offsets(QUERY_BLOCK[1]), _offsets(keys[1])]
    drawn = [STEP, SEEDS] if dropouts else []
    lengths = QUERY_BLOCK[0], keys[0]
    attrs = {"scale": 0.3, "causal": causal, "lengths": lengths, **(DROPOUT if dropouts else {})}
    out, lse = check_compiled("packed_attention", [*tensors, *offsets, *drawn], NEAR, **attrs)
    given = [_normal(*tensors[0].shape), *tensors, out, lse, *offsets, *drawn]
    check_compiled("packed_attention_grad", given, NEAR, **attrs)


def test_long_sequences_run_in_several_blocks():
    counts = [300, 40, 129]
    tensors = [_normal(sum(counts), 2, 8) for _ in range(3)]
    offsets = [_offsets(counts)] * 2
    drawn = [STEP, SEEDS]
    attrs = {"scale": 0.3, "causal": True, "lengths": (320, 320), **DROPOUT}
    out, lse = check_compiled("packed_attention", [*tensors, *offsets, *drawn], NEAR, **attrs)
    given = [_normal(*tensors[0].shape), *tensors, out, lse, *offsets, *drawn]
    check_compiled("packed_attention_grad", given, NEAR, **attrs)


@pytest.mark.parametrize("library", [True, False])
@pytest.mark.parametrize("keys", [60, 5])
def test_keys_that_no_query_reads_have_a_gradient_of_0(keys, library, monkeypatch):
    """Of a sequence without weights all queries are left out; few keys and many."""
    if not library:
        without_sgemm(monkeypatch)
    queries, counts = [0, 3, 0], [4, keys, keys]
    totals = sum(queries), sum(counts)
    tensors = [_normal(totals[0], HEADS, WIDTH), *(_normal(totals[1], HEADS, WIDTH),) * 2]
    offsets = [_offsets(queries), _offsets(counts)]
    attrs = {"scale": 0.3, "causal": False, "lengths": (9, 64)}
    out, lse = check_compiled("packed_attention", [*tensors, *offsets], NEAR, **attrs)
    given = [_normal(*tensors[0].shape), *tensors, out, lse, *offsets]
    _, dk, dv = check_compiled("packed_attention_grad", given, NEAR, **attrs)
    for unread in (slice(0, 4), slice(4 + keys, None)):
        assert not dk[unread].any() and not dv[unread].any()


@pytest.mark.parametrize("axes, shape", [(1, (12, 5)), (2, (4, 3, 7)), (2, (6, 2)), (1, (9,))])
def test_rows_are_drawn_bit_for_bit(axes, shape):
    rows = np.array([0, 3, 4, 8], np.int32)
    attrs = {"shape": shape, "axes": axes, "dtype": "float32"}
    whole = PLAIN["random_uniform"](STEP, SEEDS, shape=shape, dtype="float32")
    expected = whole.reshape(-1, *shape[axes:])[rows].reshape(
        (1,) * (axes - 1) + (4, *shape[axes:])
    )
    np.testing.assert_array_equal(
        PLAIN["random_uniform_rows"](rows, STEP, SEEDS, **attrs), expected
    )
    out = np.empty(expected.shape, "f")
    COMPILED["random_uniform_rows"].run(rows, STEP, SEEDS, out=(out,), **attrs)
    np.testing.assert_array_equal(out, expected)
