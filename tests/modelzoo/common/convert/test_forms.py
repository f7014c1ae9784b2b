"""Tests of modelzoo/common/convert/forms.py."""

from __future__ import annotations

import numpy as np
import pytest

from modelzoo.common.convert.forms import SAME, THIRDS, TRANSPOSED, FusedHeads, Preceded, Zeros

H, D, N, R = 3, 8, 24, 4


def random(*shape):
    return np.random.default_rng(len(shape)).standard_normal(shape, dtype=np.float32)


@pytest.mark.parametrize("shape", [(6, 12), (12,)], ids=str)
@pytest.mark.parametrize("form", [SAME, TRANSPOSED, THIRDS, FusedHeads(2, 2)], ids=str)
def test_form_is_undone_bit_for_bit_and_has_the_shapes_it_says(form, shape):
    array = random(*(shape if form is THIRDS else shape[::-1]))
    parts = form.to_ours(array)
    assert [part.shape for part in parts] == form.our_shapes(array.shape)
    back = form.to_theirs(parts)
    assert back.shape == array.shape
    np.testing.assert_array_equal(back.view(np.uint32), array.view(np.uint32))


def test_rows_of_zeros_come_before_a_table_and_stand_for_none():
    table = random(4, 3)
    assert Preceded(2).our_shapes((6, 3)) == [(4, 3)]
    (back,) = Preceded(2).to_ours(Preceded(2).to_theirs([table]))
    np.testing.assert_array_equal(back, table)
    np.testing.assert_array_equal(Preceded(2).to_theirs([table])[:2], np.zeros((2, 3)))
    assert Zeros((1, 3)).our_shapes((1, 3)) == Zeros((1, 3)).to_ours(table[:1]) == []
    np.testing.assert_array_equal(Zeros((1, 3)).to_theirs([]), np.zeros((1, 3)))


def test_thirds_are_queries_keys_and_values():
    query, key, value = random(4, 4), 2 * random(4, 4), 3 * random(4, 4)
    parts = THIRDS.to_ours(np.concatenate([query, key, value], axis=1))
    for part, expected in zip(parts, (query, key, value)):
        np.testing.assert_array_equal(part, expected)


def angles(positions):
    return np.outer(positions, 10000.0 ** (-np.arange(0, R, 2) / R))  # (S, R / 2)


def turn_halves(x):
    """Rotates features j and j + R / 2 of [S, H, D], as transformers does for GPT-NeoX."""
    angle = np.concatenate([angles(np.arange(len(x)))] * 2, axis=-1)[:, None]
    turned = x[..., :R]
    rotated = np.concatenate([-turned[..., R // 2 :], turned[..., : R // 2]], axis=-1)
    turned = turned * np.cos(angle) + rotated * np.sin(angle)
    return np.concatenate([turned, x[..., R:]], axis=-1)


def turn_pairs(x):
    """Rotates features 2j and 2j + 1 of [S, H, D], as complex numbers."""
    pairs = x[..., 0:R:2] + 1j * x[..., 1:R:2]
    pairs = pairs * np.exp(1j * angles(np.arange(len(x))))[:, None]
    turned = np.stack([pairs.real, pairs.imag], axis=-1).reshape(*x.shape[:-1], R)
    return np.concatenate([turned, x[..., R:]], axis=-1)


def test_fused_heads_keep_the_scores_of_rotated_queries_and_keys():
    weight, bias, x = random(H * 3 * D, N), random(H * 3 * D), random(5, N, 1)[..., 0]
    fused = (x @ weight.T + bias).reshape(5, H, 3, D)
    query, key = turn_halves(fused[:, :, 0]), turn_halves(fused[:, :, 1])
    form = FusedHeads(H, R)
    ours = [
        (x @ kernel + part).reshape(5, H, D)
        for kernel, part in zip(form.to_ours(weight), form.to_ours(bias))
    ]
    scores = np.einsum("shd,thd->hst", turn_pairs(ours[0]), turn_pairs(ours[1]))
    np.testing.assert_allclose(scores, np.einsum("shd,thd->hst", query, key), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(ours[2], fused[:, :, 2], rtol=1e-5, atol=1e-5)
