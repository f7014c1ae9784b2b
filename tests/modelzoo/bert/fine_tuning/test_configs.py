"""Tests of configs/ for BERT's fine-tunings: each has its number of parameters and its page."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.tf
pytest.importorskip("tensorflow")

from tests.modelzoo.configs import count_by_layers, load, names_of
from tests.modelzoo.pages import cells_of

PREFIX = "bert.fine_tuning."
CONFIGS = {name: load(name) for name in names_of("params_bert_*")}
NAMES = [name for name, params in CONFIGS.items() if params.model_name.startswith(PREFIX)]
# The parameters of each room's head: h the hidden size, m the model's section.
HEADS = {
    "classifier": lambda h, m: h * h + h + h * m.num_cls_classes + m.num_cls_classes,
    "token_classifier": lambda h, m: h * m.num_classes + m.num_classes,
    "question_answering": lambda h, m: 2 * h + 2,
    "extractive_summarization": lambda h, m: h + 1,
}
# BERT base and large uncased with the head of SQuAD, as Hugging Face counts them; without the
# pooled token, and one output of a hidden state.
PARAMETERS = {
    "params_bert_base_squad": 108_893_186,
    "params_bert_large_squad": 334_094_338,
    "params_bert_base_bertsum": 108_892_417,
    "params_bert_large_bertsum": 334_093_313,
}
# The encoder and pooler of BERT as released (Devlin et al. 2018): "110M" and "340M".
RELEASED = {"base": 109_482_240, "large": 335_141_888}


def room_of(name):
    return CONFIGS[name].model_name[len(PREFIX) :]


def formula(name):
    """Embeddings, L blocks of 4 h^2 + 2 h f with their biases and norms, and the head."""
    params, m = CONFIGS[name], CONFIGS[name].model
    h, f = m.hidden_size, m.filter_size
    positions = params.max_position_embeddings if m.position_embedding_type == "learned" else 0
    rows = params.vocab_size + positions + m.num_segments * m.use_segment_embedding
    block = 4 * (h * h + h) + 2 * h * f + f + h + 2 * 2 * h
    return rows * h + 2 * h + m.num_hidden_layers * block + HEADS[room_of(name)](h, m)


def test_every_room_has_configs_of_both_published_sizes_and_a_small_one():
    for room in HEADS:
        sizes = {name.split("_")[2] for name in NAMES if room_of(name) == room}
        assert sizes == {"base", "large", "small"}


@pytest.mark.parametrize("name", NAMES)
def test_config_has_its_number_of_parameters(name):
    counted = count_by_layers(CONFIGS[name])
    assert counted == formula(name)
    assert counted == PARAMETERS.get(name, counted)


@pytest.mark.parametrize("size", ["base", "large"])
def test_without_its_output_layer_a_classifier_is_the_released_bert(size):
    name = f"params_bert_{size}_sst2"
    head = 2 * CONFIGS[name].model.hidden_size + 2
    assert formula(name) - head == RELEASED[size]


@pytest.mark.parametrize("room", HEADS)
def test_page_lists_every_config_with_its_dimensions(room):
    expected = {}
    for name in (name for name in NAMES if room_of(name) == room):
        m, length = CONFIGS[name].model, CONFIGS[name].train_input.max_sequence_length
        sizes = [m.num_hidden_layers, m.hidden_size, m.num_heads, m.filter_size, length]
        expected[name] = list(map("{:,}".format, [*sizes, formula(name)]))
    assert cells_of(f"{PREFIX}{room}") == expected
