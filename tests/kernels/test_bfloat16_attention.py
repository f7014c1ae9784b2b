"""Attention with products in bfloat16 against the plain kernel, which rounds the same operands."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.kernels import (
    compiled_attention,
    compiled_bfloat16_attention,
    compiled_flash_attention,
    compiled_threads,
    scratch,
)
from cerebras_tf.kernels import instruction_set as isa
from cerebras_tf.kernels.half_precision import as_bfloat16_operand
from cerebras_tf.kernels.registry import COMPILED, PLAIN
from tests.kernels.compare import without_sgemm

RANDOM = np.random.default_rng(12)
DROPOUT = {"rate": 0.3, "kept_scale": 1.4}
DRAWN = (np.array(3, np.int64), np.array([7, -2], np.int64))


@pytest.fixture(autouse=True)
def numbers_of_this_test(monkeypatch):
    """Equal numbers whichever tests ran before: a number may lie in the middle of two bfloat16."""
    monkeypatch.setitem(globals(), "RANDOM", np.random.default_rng(12))


@pytest.fixture(params=isa.KINDS)
def kind(request, monkeypatch):
    """Every kind of instruction that this processor has; blocks of 40 queries."""
    if isa.why_unavailable(request.param):
        pytest.skip(f"{request.param}: {isa.why_unavailable(request.param)}")
    choice = isa.Choice(request.param, "set by the test")
    monkeypatch.setattr(compiled_attention, "instructions", lambda: choice)
    monkeypatch.setattr(compiled_bfloat16_attention, "QUERY_BLOCK", 40)
    monkeypatch.setattr(compiled_flash_attention, "QUERY_BLOCK", 40)
    return request.param


def normal(*shape):
    return RANDOM.standard_normal(shape).astype("f")


def check(name, arrays, **attrs):
    """Runs both kernels, compares them, and returns the compiled one's outputs."""
    attrs = {"scale": 0.2, "compute": "bfloat16", **attrs}
    expected = PLAIN[name](*arrays, **attrs)
    out = tuple(np.full(x.shape, np.nan, "f") for x in expected)
    COMPILED[name].run(*arrays, out=out, **attrs)
    for found, wanted in zip(out, expected):
        assert np.isfinite(found).all()
        # A number next to the middle between two bfloat16 may be rounded to the other one.
        assert np.linalg.norm(found - wanted) <= 3e-4 * max(np.linalg.norm(wanted), 1.0)
    return out


def check_both(q, k, v, extra=(), **attrs):
    out, lse = check("attention", [q, k, v, *extra], **attrs)
    check("attention_grad", [normal(*q.shape), q, k, v, out, lse, *extra], **attrs)
    return out


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", [(1, 1), (32, 32), (100, 100), (81, 130), (1, 70)])
def test_every_length_equals_the_plain_kernel(kind, lengths, causal):
    queries, keys = lengths
    k, v = normal(2, keys, 3, 32), normal(2, keys, 3, 32)
    check_both(normal(2, queries, 3, 32), k, v, causal=causal)


@pytest.mark.parametrize("heads", [1, 2])
def test_heads_of_keys_that_several_heads_read_equal_the_plain_kernel(kind, heads):
    k, v = normal(2, 70, heads, 32), normal(2, 70, heads, 32)
    check_both(normal(2, 70, 4, 32), k, v, causal=True)
    check_both(normal(2, 90, 4, 32), k, v, DRAWN, causal=False, **DROPOUT)


@pytest.mark.parametrize("depth", [16, 17, 64, 80, 96, 128, 200, 256])
def test_every_width_of_a_head_equals_the_plain_kernel(kind, depth):
    q, k, v = (normal(1, 50, 2, depth) for _ in range(3))
    check_both(q, k, v, causal=True, scale=depth**-0.5)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("dropped", [False, True])
def test_biases_and_dropout_equal_the_plain_kernel(kind, biased, dropped, causal):
    """The bias hides the keys of other segments, as in packed sequences."""
    segments = np.sort(RANDOM.integers(0, 3, (2, 90)))
    apart = segments[:, None, :, None] != segments[:, None, None, :]
    bias = [np.where(apart, -1e9, 0).astype("f")] if biased else []
    q, k, v = (normal(2, 90, 3, 40) for _ in range(3))
    extra = [*bias, *(DRAWN if dropped else ())]
    check_both(q, k, v, extra, causal=causal, **(DROPOUT if dropped else {}))


def test_operands_of_any_layout_serve(kind):
    fused = normal(2, 70, 3, 4, 32)
    check_both(fused[:, :, 0], fused[:, :, 1], fused[:, :, 2], causal=True)
    check_both(*(normal(2, 3, 70, 32).transpose(0, 2, 1, 3) for _ in range(3)), causal=True)
    check_both(*(normal(2, 70, 3, 64)[..., ::2] for _ in range(3)), causal=False)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("heads", [1, 2])
def test_packed_sequences_equal_the_plain_kernel(kind, causal, dropped, heads):
    """One has no queries; keys that none reads have a gradient of 0."""
    queries = [70, 3, 0, 40]
    keys = [70, 3, 5, 40] if causal else [20, 90, 5, 33]
    ends = [np.concatenate([[0], np.cumsum(n)]).astype(np.int32) for n in (queries, keys)]
    q = normal(sum(queries), 2, 32)
    k, v = normal(sum(keys), heads, 32), normal(sum(keys), heads, 32)
    extra = [*ends, *(DRAWN if dropped else ())]
    attrs = {"causal": causal, "lengths": (70, max(keys)), **(DROPOUT if dropped else {})}
    out, lse = check("packed_attention", [q, k, v, *extra], **attrs)
    given = [normal(*q.shape), q, k, v, out, lse, *extra]
    _, dk, dv = check("packed_attention_grad", given, **attrs)
    start, stop = ends[1][2:4]
    assert not dk[start:stop].any() and not dv[start:stop].any()


def test_rounded_operands_are_multiplied_without_the_library_too(monkeypatch):
    choice = isa.Choice(isa.NONE, "set by the test")
    monkeypatch.setattr(compiled_attention, "instructions", lambda: choice)
    without_sgemm(monkeypatch)
    check_both(*(normal(1, 30, 2, 16) for _ in range(3)), causal=True)


def test_instructions_serve_without_the_library(kind, monkeypatch):
    without_sgemm(monkeypatch)
    check_both(*(normal(1, 30, 2, 16) for _ in range(3)), causal=True)


def test_hidden_keys_by_minus_infinity_do_not_count_and_rows_without_keys_are_nan(kind):
    q, k, v = normal(1, 50, 2, 32), normal(1, 60, 2, 32), normal(1, 60, 2, 32)
    bias = np.where(np.arange(60) < 33, 0, -np.inf).astype("f")
    attrs = {"scale": 0.5, "causal": False, "compute": "bfloat16"}
    masked, cut, lse = np.empty_like(q), np.empty_like(q), np.empty((1, 2, 50), "f")
    COMPILED["attention"].run(q, k, v, bias, out=(masked, lse), **attrs)
    COMPILED["attention"].run(q, k[:, :33], v[:, :33], out=(cut, lse), **attrs)
    np.testing.assert_allclose(masked, cut, rtol=1e-5, atol=1e-6)
    rows = np.zeros((50, 60), "f")
    rows[7] = -np.inf
    COMPILED["attention"].run(q, k, v, rows, out=(masked, lse), **attrs)
    assert np.isnan(masked[:, 7]).all() and np.isfinite(np.delete(masked, 7, 1)).all()


@pytest.mark.parametrize("packed", [False, True])
def test_scratch_memory_is_what_the_plan_counts(kind, packed, monkeypatch):
    monkeypatch.setattr(compiled_threads, "_pool", compiled_threads._Pool(2))
    attrs = {"scale": 0.2, "causal": True, "compute": "bfloat16"}
    q = normal(2, 150, 8, 48)
    dout, k, v = (normal(*q.shape) for _ in range(3))
    name, extra = "attention", ()
    lse = np.zeros((2, 8, 150), "f")
    if packed:
        name, attrs["lengths"] = "packed_attention", (150, 150)
        dout, q, k, v = (x.reshape(300, 8, 48) for x in (dout, q, k, v))
        extra, lse = (np.array([0, 150, 300], np.int32),) * 2, np.zeros((8, 300), "f")
    outs = tuple(np.empty_like(q) for _ in range(3))
    for op, given, out in (
        (name, (q, k, v, *extra), (outs[0], lse)),
        (f"{name}_grad", (dout, q, k, v, dout, lse, *extra), outs),
    ):
        scratch.reset_peak()
        COMPILED[op].run(*given, out=out, **attrs)
        counted = COMPILED[op].scratch(*given, **attrs)
        total = counted.shared + 2 * counted.per_thread
        assert 0.6 * total < scratch.peak_bytes() <= total


def test_bits_depend_neither_on_threads_nor_on_neighbouring_sequences(kind, monkeypatch):
    q, k, v = (normal(3, 90, 4, 32) for _ in range(3))
    attrs = {"scale": 0.2, "causal": True, "compute": "bfloat16"}
    found = []
    for threads, few in ((1, slice(None)), (3, slice(None)), (1, slice(1, 2))):
        monkeypatch.setattr(compiled_threads, "_pool", compiled_threads._Pool(threads))
        out = np.empty_like(q[few]), np.empty((len(q[few]), 4, 90), "f")
        COMPILED["attention"].run(q[few], k[few], v[few], out=out, **attrs)
        found.append(out[0])
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0][1:2], found[2])


def test_operands_that_are_rounded_before_give_the_same_bits(kind):
    """The definition of bfloat16 products: float32 sums of products of rounded operands."""
    q, k, v = (normal(1, 64, 2, 32) for _ in range(3))
    attrs = {"scale": 0.2, "causal": True, "compute": "bfloat16"}
    found = []
    for operands in ((q, k, v), tuple(map(as_bfloat16_operand, (q, k, v)))):
        out = np.empty_like(q), np.empty((1, 2, 64), "f")
        COMPILED["attention"].run(*operands, out=out, **attrs)
        found.append(out[0])
    np.testing.assert_array_equal(*found)
