"""Tests of configs/ for GPT-J and NeoX: each loads, and has the published number of parameters."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.tf
pytest.importorskip("tensorflow")

from tests.modelzoo.configs import build, count, count_by_layers, load, names_of
from tests.modelzoo.pages import cells_of
from tests.modelzoo.runs import cells

# Tensors of the released checkpoints, EleutherAI/gpt-j-6B and EleutherAI/gpt-neox-20b.
PARAMETERS = {
    "params_gptj_6b": 6_050_882_784,
    "params_gptj_6b_finetune_summarization": 6_050_882_784,
    "params_gpt_neox_20b": 20_554_567_680,
}
NAMES = names_of("params_gptj_*", "params_gpt_neox_*")


def formula(params):
    """12 L h^2 with what is added to it, for feed-forward width f and vocabulary V."""
    model, vocab_size = params.model, params.train_input.vocab_size
    h, f = model.hidden_size, model.filter_size
    norms = 2 * 2 * h if model.use_untied_layer_norm else 2 * h
    block = 4 * h * h + 2 * h * f + f + h + norms
    block += 3 * h if model.use_projection_bias_in_attention else 0
    block += h if model.use_ffn_bias_in_attention else 0
    tables = vocab_size * h * (1 if model.share_embedding_weights else 2)
    bias = vocab_size if model.use_bias_in_output else 0
    return model.num_hidden_layers * block + tables + bias + 2 * h


def test_every_published_size_has_a_config():
    assert set(PARAMETERS) | {"params_gptj_tiny", "params_gpt_neox_tiny"} <= set(NAMES)


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


def test_fine_tuning_takes_every_weight_of_pre_training():
    shapes = [
        {variable.op.name: variable.shape for variable in build(load(name), layers=2)}
        for name in ("params_gptj_6b", "params_gptj_6b_finetune_summarization")
    ]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("name", NAMES)
def test_given_initializers_follow_from_the_sizes(name):
    """Outputs start with 4 / L^2 over their fan-in, embeddings of GPT-J with 1 / sqrt(V)."""
    params = load(name)
    model = params.model
    if model.output_layer_initializer is not None:
        expected = 4.0 / model.num_hidden_layers**2
        assert model.output_layer_initializer.scale == pytest.approx(expected, rel=1e-4)
    embedding = model.embedding_initializer
    if embedding is not None and embedding.name == "truncated_normal":
        expected = params.train_input.vocab_size**-0.5
        assert embedding.stddev == pytest.approx(expected, rel=1e-4)


def test_page_lists_every_config_with_its_dimensions_and_its_run():
    expected = {}
    for name in NAMES:
        params = load(name)
        m, length = params.model, params.train_input.max_sequence_length
        rotated = m.rotary_dim or m.head_size
        sizes = [m.num_hidden_layers, m.hidden_size, m.num_heads, m.filter_size, rotated, length]
        expected[name] = [*map("{:,}".format, sizes), *cells(params, formula(params))]
    assert cells_of("gptj") == expected
