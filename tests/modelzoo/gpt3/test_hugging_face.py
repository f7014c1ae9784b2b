"""GPT-2 against Hugging Face's: the same logits, and weights that come back bit for bit."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.tf
pytest.importorskip("tensorflow")
torch = pytest.importorskip("torch", reason="torch is a test extra")
transformers = pytest.importorskip("transformers", reason="transformers is a test extra")

from tests.modelzoo.hugging_face import check_both_ways

VARIANTS = {
    "gpt2": {},
    "cerebras_gpt": {"activation_function": "gelu", "n_inner": 40},
    "untied": {"tie_word_embeddings": False},
    "unscaled": {"scale_attn_weights": False},
    "by_layer": {"scale_attn_by_inverse_layer_idx": True, "reorder_and_upcast_attn": True},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_those_of_hugging_face_and_weights_come_back(variant, tmp_path):
    config = transformers.GPT2Config(
        vocab_size=61,
        n_positions=24,
        n_embd=32,
        n_layer=3,
        n_head=4,
        bos_token_id=None,
        eos_token_id=None,
        **VARIANTS[variant],
    )
    check_both_ways(transformers.GPT2LMHeadModel(config), tmp_path)


def test_model_without_its_head_and_in_half_precision_is_read(tmp_path):
    config = transformers.GPT2Config(vocab_size=61, n_positions=24, n_embd=32, n_layer=2, n_head=4)
    check_both_ways(transformers.GPT2Model(config).half(), tmp_path, back=False)
