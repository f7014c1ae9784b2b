"""Tests of the configs of question answering: published numbers of parameters, and the page."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.tf
pytest.importorskip("tensorflow")

from tests.modelzoo.bert.fine_tuning import sizes  # noqa: E402
from tests.modelzoo.pages import listed  # noqa: E402

# BERT base and large uncased with the head of SQuAD, as Hugging Face counts them.
PARAMETERS = {"params_bert_base_squad": 108_893_186, "params_bert_large_squad": 334_094_338}
NAMES = [*PARAMETERS, "params_bert_small_squad"]


@pytest.mark.parametrize("name", NAMES)
def test_config_has_its_number_of_parameters(name):
    params = sizes.load(name)
    head = 2 * params.model.hidden_size + 2
    counted = sizes.counted(params)
    assert counted == sizes.encoder_formula(params) + head
    assert counted == PARAMETERS.get(name, counted)


def test_readme_lists_every_config_with_its_dimensions():
    found = {}
    for name in NAMES:
        params = sizes.load(name)
        found[name] = sizes.expected(params, 2 * params.model.hidden_size + 2)
    assert listed("bert/fine_tuning/question_answering") == found
