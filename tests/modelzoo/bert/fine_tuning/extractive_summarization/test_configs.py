"""Tests of the configs of extractive summarization: numbers of parameters, and the page."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.tf
pytest.importorskip("tensorflow")

from tests.modelzoo.bert.fine_tuning import sizes  # noqa: E402
from tests.modelzoo.pages import listed  # noqa: E402

# BERT base and large uncased without the pooled token, and one output of a hidden state.
PARAMETERS = {"params_bert_base_bertsum": 108_892_417, "params_bert_large_bertsum": 334_093_313}
NAMES = [*PARAMETERS, "params_bert_small_bertsum"]


@pytest.mark.parametrize("name", NAMES)
def test_config_has_its_number_of_parameters(name):
    params = sizes.load(name)
    head = params.model.hidden_size + 1
    counted = sizes.counted(params)
    assert counted == sizes.encoder_formula(params) + head
    assert counted == PARAMETERS.get(name, counted)


def test_readme_lists_every_config_with_its_dimensions():
    found = {}
    for name in NAMES:
        params = sizes.load(name)
        found[name] = sizes.expected(params, params.model.hidden_size + 1)
    assert listed("bert/fine_tuning/extractive_summarization") == found
