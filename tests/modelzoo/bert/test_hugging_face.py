"""BERT against Hugging Face's: the same outputs, padding and all, and weights that come back."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.tf
pytest.importorskip("tensorflow")
torch = pytest.importorskip("torch", reason="torch is a test extra")
transformers = pytest.importorskip("transformers", reason="transformers is a test extra")

from tests.modelzoo.hugging_face import check_both_ways  # noqa: E402

OUTPUTS = {
    "BertForPreTraining": {"logits", "sentence_logits"},
    "BertForMaskedLM": {"logits"},
    "BertModel": {"hidden", "pooled"},
}


@pytest.mark.parametrize("activation", ["gelu", "gelu_new"])
@pytest.mark.parametrize("architecture", OUTPUTS)
def test_outputs_are_those_of_hugging_face_and_weights_come_back(
    architecture, activation, tmp_path
):
    config = transformers.BertConfig(
        vocab_size=61,
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=24,
        hidden_act=activation,
    )
    outputs = check_both_ways(getattr(transformers, architecture)(config), tmp_path)
    assert outputs == OUTPUTS[architecture]
