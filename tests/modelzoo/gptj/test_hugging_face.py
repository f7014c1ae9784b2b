"""GPT-J and GPT-NeoX against Hugging Face's: the same logits, and weights that come back."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.tf
pytest.importorskip("tensorflow")
torch = pytest.importorskip("torch", reason="torch is a test extra")
transformers = pytest.importorskip("transformers", reason="transformers is a test extra")

from tests.modelzoo.hugging_face import check_both_ways


@pytest.mark.parametrize("rotary_dim, tied", [(4, False), (8, True)])
def test_logits_of_gptj_are_those_of_hugging_face_and_weights_come_back(rotary_dim, tied, tmp_path):
    config = transformers.GPTJConfig(
        vocab_size=61,
        n_positions=24,
        n_embd=32,
        n_layer=3,
        n_head=4,
        rotary_dim=rotary_dim,
        tie_word_embeddings=tied,
        bos_token_id=None,
        eos_token_id=None,
    )
    check_both_ways(transformers.GPTJForCausalLM(config), tmp_path)


@pytest.mark.parametrize(
    "variant",
    [
        {"hidden_act": "gelu"},
        {"hidden_act": "gelu_fast"},
        {"rope_parameters": {"rope_theta": 10000.0, "partial_rotary_factor": 1.0}},
        {"tie_word_embeddings": True},
        {"use_parallel_residual": False},
        {"attention_bias": False},
        {"rope_parameters": {"rope_theta": 500.0, "partial_rotary_factor": 0.5}},
    ],
    ids=lambda variant: "-".join(f"{k}={v}" for k, v in variant.items())[:30],
)
def test_logits_of_gpt_neox_are_those_of_hugging_face_and_weights_come_back(variant, tmp_path):
    config = transformers.GPTNeoXConfig(
        vocab_size=61,
        max_position_embeddings=24,
        hidden_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=48,
        **variant,
    )
    check_both_ways(transformers.GPTNeoXForCausalLM(config), tmp_path)
