"""Forms, tables and layouts of a conversion."""

from __future__ import annotations

import numpy as np
import pytest

from modelzoo.common.config import registry
from modelzoo.common.convert import bert
from modelzoo.common.convert.layout import (
    SAME,
    THIRDS,
    TRANSPOSED,
    FusedHeads,
    Layout,
    Preceded,
    Zeros,
    dense,
    expand,
    norm,
)
from tests.modelzoo.common.convert.models import CASES, layout_of, params_of

H, D, N, R = 3, 8, 24, 4


def random(*shape):
    return np.random.default_rng(len(shape)).standard_normal(shape, dtype=np.float32)


@pytest.mark.parametrize("shape", [(6, 12), (12,)], ids=str)
@pytest.mark.parametrize("form", [SAME, TRANSPOSED, THIRDS, FusedHeads(2, 2)], ids=str)
def test_form_is_undone_bit_for_bit_and_has_its_shapes(form, shape):
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


SIZES = {"N": 4, "F": 6}


def test_expand_numbers_our_layers_through_the_model_and_leaves_zero_out():
    rows = norm("h.{i}.ln", "decoder/norm{_3i+2}") + dense("h.{i}.fc", "ffn{_i}/d{_2i}", "F N")
    links = {link.theirs: link.ours[0] for link in expand(rows, SIZES, 2)}
    assert links == {
        "h.0.ln.weight": "decoder/norm_2/norm_2/gamma",
        "h.1.ln.weight": "decoder/norm_5/norm_5/gamma",
        "h.0.ln.bias": "decoder/norm_2/norm_2/beta",
        "h.1.ln.bias": "decoder/norm_5/norm_5/beta",
        "h.0.fc.weight": "ffn/d/d/kernel",
        "h.1.fc.weight": "ffn_1/d_2/d_2/kernel",
        "h.0.fc.bias": "ffn/d/d/bias",
        "h.1.fc.bias": "ffn_1/d_2/d_2/bias",
    }


def test_groups_stay_where_any_of_their_tensors_is_there():
    rows = dense("body", "b", "N N") + dense("head", "h", "F N", group="head")
    layout = Layout(expand(rows, SIZES, 1), {"copy": "head.weight"})
    assert layout.without_groups({"head.bias"}) == layout
    assert layout.without_groups({"h/h/kernel"}) == layout
    without = layout.without_groups({"body.weight"})
    assert [link.theirs for link in without.links] == ["body.weight", "body.bias"]
    assert without.copies == {}


def test_both_tables_of_bert_have_the_same_variables_and_order():
    params = params_of("bert")
    ours = [link.our_shapes for link in layout_of("bert").links]
    assert [link.our_shapes for link in bert.google_layout(params).links] == ours


@pytest.mark.tf
@pytest.mark.parametrize("name", CASES)
def test_variables_of_a_table_are_those_of_the_model(name):
    tf = pytest.importorskip("tensorflow.compat.v1")
    params = params_of(name)
    model, _ = registry.load_model(params.model_name)
    with tf.Graph().as_default():
        ids = tf.constant(np.zeros((1, 4), np.int32))
        features = {"input_ids": ids, "input_mask": 0 * ids, "segment_ids": ids}
        features.update(masked_lm_positions=ids[:, :1], masked_lm_ids=ids[:, :1])
        features.update(dict.fromkeys(("example_index", "unique_ids", "sentence_ids"), ids))
        features["word_ids"] = ids
        mode = tf.estimator.ModeKeys.PREDICT
        model.model_fn(features, None, mode, CASES[name][0].tree(*tree_arguments(name)))
        found = {v.op.name: tuple(v.shape.as_list()) for v in tf.trainable_variables()}
    links = layout_of(name).without_groups(found).links
    assert {k: shape for link in links for k, shape in link.our_shapes.items()} == found


def tree_arguments(name):
    return CASES[name][1], "config.json", ("cls.seq_relationship.weight",)
