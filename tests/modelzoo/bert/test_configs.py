"""Tests of configs/ for BERT's pre-training: published numbers of parameters, names, the page."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.tf
pytest.importorskip("tensorflow")

from tests.modelzoo.configs import build, count, count_by_layers, load, names_of
from tests.modelzoo.pages import cells_of
from tests.modelzoo.runs import cells

# BERT base and large uncased with the heads of pre-training, as released (Devlin et al. 2018);
# PubMedBERT's are of the same dimensions. RoBERTa's and the small ones: their formula.
BASE, LARGE = 110_106_428, 336_226_108
PARAMETERS = {
    f"params_{model}_{size}_msl{length}": count
    for model in ("bert", "pubmedbert")
    for size, count in (("base", BASE), ("large", LARGE))
    for length in (128, 512)
}
NAMES = [
    name
    for name in names_of("params_*bert_*", "params_roberta_*")
    if load(name).model_name == "bert"
]


def formula(params):
    """Embeddings, L blocks of 4 h^2 + 2 h f, and the heads, with their biases and norms."""
    m = params.model
    h, f = m.hidden_size, m.filter_size
    positions = params.max_position_embeddings if m.position_embedding_type == "learned" else 0
    rows = params.vocab_size + positions + 2 * m.use_segment_embedding
    block = 4 * (h * h + h) + 2 * h * f + f + h + 2 * 2 * h
    words = h * h + h + 2 * h + params.vocab_size
    sentences = 0 if m.disable_nsp else h * h + h + 2 * h + 2
    return rows * h + 2 * h + m.num_hidden_layers * block + words + sentences


def test_every_published_size_has_a_config():
    assert set(PARAMETERS) | {"params_bert_tiny", "params_roberta_base_msl512"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_config_has_its_number_of_parameters(name):
    params = load(name)
    counted = count_by_layers(params)
    assert counted == formula(params)
    assert counted == PARAMETERS.get(name, counted)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_whole_graph_of_every_config_is_built(name):
    params = load(name)
    assert count(build(params)) == formula(params)


def test_variables_have_the_names_of_the_original_checkpoints():
    names = {variable.op.name for variable in build(load("params_bert_base_msl128"), layers=2)}
    expected = {
        "input_embedding/embedding_weights",
        "position_embedding/position_embedding_weights",
        "segment_embedding/segment_embedding_weights",
        "mlm_layer/mlm_bias",
    }
    dense = ["cls_layer/cls_dense/cls_dense", "cls_layer/cls_output_dense/cls_output_dense"]
    dense.append("mlm_layer/mlm_ffn/mlm_ffn")
    norms = ["pre_encoder_layer_norm/pre_encoder_layer_norm"]
    norms.append("mlm_layer/mlm_layer_norm/mlm_layer_norm")
    for i in range(2):
        suffix = f"_{i}" if i else ""
        for kind in ("q_projection", "k_projection", "v_projection", "output_transform"):
            dense.append(f"encoder/self_attention{suffix}/{kind}/{kind}")
        for number in (2 * i, 2 * i + 1):
            layer = f"dense_layer_{number}" if number else "dense_layer"
            dense.append(f"encoder/ffn{suffix}/{layer}/{layer}")
            norm = f"layer_normalization_layer_{number}" if number else "layer_normalization_layer"
            norms.append(f"encoder/{norm}/{norm}")
    expected |= {f"{name}/{part}" for name in dense for part in ("kernel", "bias")}
    expected |= {f"{name}/{part}" for name in norms for part in ("gamma", "beta")}
    assert names == expected


def test_page_lists_every_config_with_its_dimensions_and_its_run():
    expected = {}
    for name in NAMES:
        params = load(name)
        m, length = params.model, params.train_input.max_sequence_length
        sizes = [m.num_hidden_layers, m.hidden_size, m.num_heads, m.filter_size, length]
        expected[name] = [*map("{:,}".format, sizes), *cells(params, formula(params))]
    assert cells_of("bert") == expected
