"""Tests of configs/ for BERT's classifiers: each builds with its dimensions and its parameters."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow.compat.v1")

from modelzoo.bert.fine_tuning.classifier.model import classifier_logits  # noqa: E402
from modelzoo.bert.fine_tuning.token_classifier.model import token_logits  # noqa: E402
from modelzoo.common.params import load_params  # noqa: E402
from tests.modelzoo.pages import listed  # noqa: E402

ROOT = Path(__file__).resolve().parents[4]
# By room: how to build it, and its configs.
ROOMS = {
    "classifier": (
        classifier_logits,
        ["base_mnli", "base_sst2", "large_mnli", "large_sst2", "small_sst2"],
    ),
    "token_classifier": (token_logits, ["base_bc5cdr", "large_bc5cdr", "small_ncbi_disease"]),
}
CASES = [(room, f"params_bert_{name}") for room, (_, names) in ROOMS.items() for name in names]
# The encoder and pooler of BERT as released (Devlin et al. 2018): "110M" and "340M".
RELEASED = {"base": 109_482_240, "large": 335_141_888}


def load(name):
    return load_params(str(ROOT / "configs" / f"{name}.yaml"))


def formula(room, params):
    """Embeddings, layers of width h with a feed-forward of f, and the head."""
    model = params.model
    h, f = model.hidden_size, model.filter_size
    layer = 4 * (h * h + h) + 2 * h * f + f + h + 2 * 2 * h
    segments = 2 if model.use_segment_embedding else 0
    embeddings = (params.vocab_size + params.max_position_embeddings + segments) * h + 2 * h
    classifier = room == "classifier"
    classes = model.num_cls_classes if classifier else model.num_classes
    head = (h * h + h if classifier else 0) + h * classes + classes
    return embeddings + model.num_hidden_layers * layer + head


def build(room, params, layers):
    """The trainable variables of the model with that many layers."""
    model = dataclasses.replace(params.model, num_hidden_layers=layers)
    params = dataclasses.replace(params, model=model)
    with tf.Graph().as_default():
        ids = tf.zeros([2, params.train_input.max_sequence_length], tf.int32)
        features = {"input_ids": ids, "input_mask": ids, "segment_ids": ids}
        ROOMS[room][0](features, params, True)
        return sum(v.shape.num_elements() for v in tf.trainable_variables())


@pytest.mark.parametrize(("room", "name"), CASES)
def test_config_has_its_number_of_parameters(room, name):
    """Layers are alike, so the graphs of one and two layers tell the count of any number."""
    params = load(name)
    one, two = build(room, params, 1), build(room, params, 2)
    assert one + (params.model.num_hidden_layers - 1) * (two - one) == formula(room, params)


@pytest.mark.parametrize("size", ["base", "large"])
def test_without_its_output_layer_a_classifier_is_the_released_bert(size):
    params = load(f"params_bert_{size}_sst2")
    head = 2 * params.model.hidden_size + 2
    assert formula("classifier", params) - head == RELEASED[size]


@pytest.mark.parametrize("room", ROOMS)
def test_readme_lists_every_config_with_its_dimensions(room):
    expected = {}
    for _, name in (case for case in CASES if case[0] == room):
        params = load(name)
        m, length = params.model, params.train_input.max_sequence_length
        sizes = [m.num_hidden_layers, m.hidden_size, m.num_heads, m.filter_size, length]
        expected[name] = [*sizes, formula(room, params)]
    assert listed(f"bert/fine_tuning/{room}") == expected
