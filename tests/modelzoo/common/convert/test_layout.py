"""Tests of modelzoo/common/convert/layout.py and of the tables it reads."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

from modelzoo.common.convert import google_bert
from modelzoo.common.convert.layout import Layout, dense, expand, norm
from tests.modelzoo.common.convert.models import CASES, layout_of, params_of

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


def test_links_know_the_shapes_of_both_sides():
    weight, bias = expand(dense("fc", "d", "F N"), SIZES, 1)
    assert (weight.shape, weight.our_shapes) == ((6, 4), {"d/d/kernel": (4, 6)})
    assert (bias.shape, bias.our_shapes) == ((6,), {"d/d/bias": (6,)})


def test_groups_stay_where_any_of_their_tensors_is_there():
    rows = dense("body", "b", "N N") + dense("head", "h", "F N", group="head")
    layout = Layout(expand(rows, SIZES, 1), {"copy": "head.weight"})
    assert layout.without_groups({"head.bias"}) == layout
    assert layout.without_groups({"h/h/kernel"}) == layout
    without = layout.without_groups({"body.weight"})
    assert [link.theirs for link in without.links] == ["body.weight", "body.bias"]
    assert without.copies == {}


@pytest.mark.parametrize("name", CASES)
def test_no_name_stands_twice_in_a_table(name):
    layout = layout_of(name)
    theirs = [link.theirs for link in layout.links]
    ours = [variable for link in layout.links for variable in link.ours]
    assert len(set(theirs)) == len(theirs)
    assert len(set(ours)) == len(ours)


def test_both_tables_of_bert_have_the_same_variables_and_order():
    params = params_of("bert")
    ours = [link.our_shapes for link in layout_of("bert").links]
    assert [link.our_shapes for link in google_bert.layout(params).links] == ours


@pytest.mark.tf
@pytest.mark.parametrize("name", CASES)
def test_variables_of_a_table_are_those_of_the_model(name):
    tf = pytest.importorskip("tensorflow.compat.v1")
    params = params_of(name)
    model = importlib.import_module(f"modelzoo.{params.model_name}.model")
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
